// Copies a completion, or a group with all its completions, as JSON to the clipboard.
import { total } from "/reader/completion.js";
import { h } from "/lib/lib.js";
import { whole } from "/reader/windows.js";

const PER_TOKEN = ["ids", "logprobs", "new_logprobs", "entropies", "values", "advantages", "mask"];

const head = (run, data) => ({
  run,
  of: data.of ?? "training",
  step: data.step,
  group: data.group,
  prompt: data.prompt,
  columns: data.columns ?? undefined,
  reward_weights: Object.fromEntries((data.reward_names ?? []).map((name, i) => [name, data.weights?.[i] ?? 1])),
});

async function body(run, data, one) {
  const all = await whole(run, data, one);
  const rewards = Object.fromEntries((data.reward_names ?? []).map((name, i) => [name, all.rewards?.[i] ?? null]));
  const perToken = PER_TOKEN.filter((name) => all[name]).map((name) => [name, all[name]]);
  return {
    completion: all.number,
    text: all.text ?? all.pieces?.join("") ?? null,
    tokens: all.length,
    truncated: all.truncated ?? undefined,
    reward: total(all, data),
    rewards,
    advantage: all.advantage ?? undefined,
    ...Object.fromEntries(perToken),
  };
}

export const completionJson = async (run, data, number) => ({
  ...head(run, data),
  ...(await body(run, data, data.completions[number])),
});

export async function groupJson(run, data) {
  const completions = [];
  for (const one of data.completions) completions.push(await body(run, data, one));
  return { ...head(run, data), completions };
}

/** Puts text into the clipboard; if the browser does not allow it, shows the text to be copied by hand. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages from other machines without TLS have no clipboard API, but can copy selected text.
    return byHand(text);
  }
}

function byHand(text) {
  const area = h("textarea", { readonly: true, "aria-label": "The text to copy" });
  area.value = text;
  const dialog = h("dialog", { class: "copied", "aria-label": "Copy" });
  dialog.append(
    h("p", {}, "The browser does not allow this page to copy. Copy the text from here."),
    area,
    h("button", { onclick: () => dialog.close() }, "Close"),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  area.select();
  if (!document.execCommand("copy")) return false;
  dialog.close();
  return true;
}

/** A button that copies a completion or a group, and reports success. */
export function copyButton(what, make) {
  const name = `copy ${what}`;
  const button = h("button", { type: "button", "data-copies": what, title: "as JSON, with its tokens" }, name);
  button.addEventListener("click", async () => {
    const isCopied = await copy(JSON.stringify(await make(), null, 1));
    button.textContent = isCopied ? `${name}: copied` : name;
    setTimeout(() => (button.textContent = name), 2000);
  });
  return button;
}
