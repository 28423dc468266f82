// Checks that the page shows the contents of the files: numbers, tokens and colours against a run's own records. Each
// part is a file; they run one after the other, since some create runs that later ones list.
import { finish } from "./page.mjs";

await import("./groups.mjs");
await import("./levels.mjs");
await import("./answers.mjs");
await import("./kinds.mjs");
await import("./door.mjs");
await import("./zoom.mjs");
await import("./charts.mjs");
await import("./live.mjs");
await import("./slow.mjs");
await import("./reader.mjs");
await import("./views.mjs");

// Expected errors: a connection that was cut, a job that was refused, and requests that a check lets fail.
await finish("the page shows the contents of the files", [
  "ERR_INCOMPLETE_CHUNKED_ENCODING",
  "levels: Failed to load resource: the server responded with a status of 409",
  "#//runs: Failed to load resource: net::ERR_FAILED",
]);
