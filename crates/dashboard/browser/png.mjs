// Writes screenshots as PNG files with at most 256 colours: a third of the size, and the page has hardly more colours.
import { deflateSync, inflateSync } from "node:zlib";

const SIGNATURE = Buffer.from([137, 80, 78, 71, 13, 10, 26, 10]);
const MOST_COLORS = 256;
// The number of bits per channel by which colours are grouped before the most frequent groups are chosen.
const BITS = 5;

const CRC = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let k = 0; k < 8; k++) n = n & 1 ? 0xedb88320 ^ (n >>> 1) : n >>> 1;
  return n;
});

function crc(bytes) {
  let sum = 0xffffffff;
  for (const byte of bytes) sum = CRC[(sum ^ byte) & 255] ^ (sum >>> 8);
  return (sum ^ 0xffffffff) >>> 0;
}

function chunk(name, data) {
  const [length, body, check] = [Buffer.alloc(4), Buffer.concat([Buffer.from(name), data]), Buffer.alloc(4)];
  length.writeUInt32BE(data.length);
  check.writeUInt32BE(crc(body));
  return Buffer.concat([length, body, check]);
}

/** The pixels of a PNG file written by Chromium (8 bits, RGB or RGBA, not interlaced), as numbers 0xRRGGBB. */
export function decode(png) {
  if (!png.subarray(0, 8).equals(SIGNATURE)) throw new Error("not a PNG file");
  const parts = [];
  let [width, height, channels] = [0, 0, 0];
  for (let at = 8; at < png.length; ) {
    const [length, name] = [png.readUInt32BE(at), png.toString("latin1", at + 4, at + 8)];
    const data = png.subarray(at + 8, at + 8 + length);
    if (name === "IHDR") {
      [width, height] = [data.readUInt32BE(0), data.readUInt32BE(4)];
      channels = { 2: 3, 6: 4 }[data[9]];
      if (data[8] !== 8 || !channels || data[12] !== 0) throw new Error("a PNG file of another form");
    } else if (name === "IDAT") parts.push(data);
    at += 12 + length;
  }
  const [bytes, line] = [inflateSync(Buffer.concat(parts)), width * channels];
  const pixels = new Uint32Array(width * height);
  let before = new Uint8Array(line);
  for (let y = 0; y < height; y++) {
    const filter = bytes[y * (line + 1)];
    const row = Uint8Array.from(bytes.subarray(y * (line + 1) + 1, (y + 1) * (line + 1)));
    for (let i = 0; i < line; i++) {
      const [a, b, c] = [i < channels ? 0 : row[i - channels], before[i], i < channels ? 0 : before[i - channels]];
      if (filter === 1) row[i] += a;
      else if (filter === 2) row[i] += b;
      else if (filter === 3) row[i] += (a + b) >> 1;
      else if (filter === 4) {
        const [pa, pb, pc] = [Math.abs(b - c), Math.abs(a - c), Math.abs(a + b - 2 * c)];
        row[i] += pa <= pb && pa <= pc ? a : pb <= pc ? b : c;
      }
    }
    for (let x = 0; x < width; x++) {
      const at = x * channels;
      pixels[y * width + x] = (row[at] << 16) | (row[at + 1] << 8) | row[at + 2];
    }
    before = row;
  }
  return { width, height, pixels };
}

const channelsOf = (color) => [color >> 16, (color >> 8) & 255, color & 255];

/** At most 256 colours for these pixels: all of them, or the means of the most frequent groups of similar colours. */
function paletteOf(pixels) {
  const counts = new Map();
  for (const color of pixels) counts.set(color, (counts.get(color) ?? 0) + 1);
  if (counts.size <= MOST_COLORS) return [...counts.keys()];
  const groups = new Map();
  for (const [color, count] of counts) {
    const key = channelsOf(color).reduce((key, x) => (key << BITS) | (x >> (8 - BITS)), 0);
    const group = groups.get(key) ?? { count: 0, sums: [0, 0, 0], first: color, most: 0 };
    group.count += count;
    channelsOf(color).forEach((x, i) => (group.sums[i] += x * count));
    if (count > group.most) [group.first, group.most] = [color, count];
    groups.set(key, group);
  }
  const chosen = [...groups.values()].sort((a, b) => b.count - a.count).slice(0, MOST_COLORS);
  // A colour that nearly all pixels of its group have, such as the background, is kept exactly.
  return chosen.map(({ count, sums, first, most }) =>
    most > count / 2 ? first : sums.reduce((color, sum) => (color << 8) | Math.round(sum / count), 0),
  );
}

/** A PNG file with the same picture in at most 256 colours. */
export function quantised(png) {
  const { width, height, pixels } = decode(png);
  const palette = paletteOf(pixels);
  const nearest = new Map();
  const placeOf = (color) => {
    let place = nearest.get(color);
    if (place === undefined) {
      const own = channelsOf(color);
      const away = palette.map((other) => channelsOf(other).reduce((sum, x, i) => sum + (x - own[i]) ** 2, 0));
      place = away.indexOf(Math.min(...away));
      nearest.set(color, place);
    }
    return place;
  };
  const rows = Buffer.alloc(height * (width + 1));
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++) rows[y * (width + 1) + 1 + x] = placeOf(pixels[y * width + x]);
  const head = Buffer.alloc(13);
  head.writeUInt32BE(width, 0);
  head.writeUInt32BE(height, 4);
  // 8 bits per pixel, an index into the palette.
  head.set([8, 3, 0, 0, 0], 8);
  return Buffer.concat([
    SIGNATURE,
    chunk("IHDR", head),
    chunk("PLTE", Buffer.from(palette.flatMap(channelsOf))),
    chunk("IDAT", deflateSync(rows, { level: 9 })),
    chunk("IEND", Buffer.alloc(0)),
  ]);
}
