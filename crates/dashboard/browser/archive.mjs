// Compresses a tar archive for the folder runs/, or decompresses it, with Brotli, which is a quarter smaller than gzip
// and part of Node.js. `node archive.mjs pack <ARCHIVE.tar >ARCHIVE.tar.br`, and `unpack` for the other direction.
import { readFileSync, writeFileSync } from "node:fs";
import { brotliCompressSync, brotliDecompressSync, constants } from "node:zlib";

const [how] = process.argv.slice(2);
const bytes = readFileSync(0);
const params = {
  [constants.BROTLI_PARAM_QUALITY]: constants.BROTLI_MAX_QUALITY,
  [constants.BROTLI_PARAM_LGWIN]: constants.BROTLI_MAX_WINDOW_BITS,
  [constants.BROTLI_PARAM_SIZE_HINT]: bytes.length,
};
const ways = { pack: () => brotliCompressSync(bytes, { params }), unpack: () => brotliDecompressSync(bytes) };
if (!ways[how]) throw new Error(`node archive.mjs pack|unpack, not ${how}`);
writeFileSync(1, ways[how]());
