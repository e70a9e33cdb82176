// Pictures as the model gets them, in the way that lmrc reads them: laid on white where they are
// transparent, scaled until the shorter side fits (bicubic, with antialiasing, in the fixed-point
// arithmetic of Pillow), cropped at the centre.

const PRECISION = 2 ** 22;  // of Pillow's coefficients for 8 bits a channel
const SUPPORT = 2;  // pixels of the bicubic filter, on each side

// Return {data, width, height}: RGBA pixels of a picture file, upright.
export async function decode(file) {
  const bitmap = await createImageBitmap(file, {
    imageOrientation: "from-image", colorSpaceConversion: "none", premultiplyAlpha: "none",
  });
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  return context.getImageData(0, 0, canvas.width, canvas.height);
}

// Return the pixels of a picture file for the model: height × width × channels values.
export async function pixelsOf(file, { height, width, channels }) {
  let image = planes(await decode(file), channels);
  const head = new Uint8Array(await file.slice(0, 2).arrayBuffer());
  if (head[0] === 0xff && head[1] === 0xd8) image = reduce(image, 2 * Math.max(height, width));
  return fit(image, width, height);
}

// Colour, or shades of grey by ITU-R 601-2.
function planes({ data, width, height }, channels) {
  const pixels = new Uint8Array(width * height * channels);
  for (let i = 0, j = 0; i < data.length; i += 4) {
    if (channels === 1) {
      pixels[j] = (data[i] * 19595 + data[i + 1] * 38470 + data[i + 2] * 7471 + 0x8000) >> 16;
      j += 1;
    } else {
      pixels.set(data.subarray(i, i + 3), j);
      j += 3;
    }
  }
  return { pixels, width, height, channels };
}

// A large JPEG is read at 1/2, 1/4 or 1/8 of its scale, to no less than a size: means of blocks.
function reduce(image, size) {
  const { pixels, width, height, channels } = image;
  const most = Math.min(Math.floor(width / size), Math.floor(height / size));
  const block = [8, 4, 2].find((n) => n <= most);
  if (!block) return image;
  const across = Math.ceil(width / block);
  const down = Math.ceil(height / block);
  const reduced = new Uint8Array(across * down * channels);
  for (let y = 0; y < down; y += 1) {
    for (let x = 0; x < across; x += 1) {
      const right = Math.min(width, (x + 1) * block);
      const bottom = Math.min(height, (y + 1) * block);
      const n = (right - x * block) * (bottom - y * block);
      for (let c = 0; c < channels; c += 1) {
        let sum = 0;
        for (let v = y * block; v < bottom; v += 1) {
          for (let u = x * block; u < right; u += 1) sum += pixels[(v * width + u) * channels + c];
        }
        reduced[(y * across + x) * channels + c] = Math.round(sum / n);
      }
    }
  }
  return { pixels: reduced, width: across, height: down, channels };
}

function fit(image, width, height) {
  const wanted = width / height;
  const is = image.width / image.height;
  const w = is > wanted ? wanted * image.height : image.width;
  const h = is < wanted ? image.width / wanted : image.height;
  const left = (image.width - w) * 0.5;
  const top = (image.height - h) * 0.5;
  return resample(resample(image, left, left + w, width, true), top, top + h, height, false).pixels;
}

// Scale one side: what is from `from` to `to` becomes `size` pixels.
function resample(image, from, to, size, isRow) {
  const { pixels, channels } = image;
  const length = isRow ? image.width : image.height;
  const lines = isRow ? image.height : image.width;
  if (from === 0 && to === length && size === length) return image;
  const made = new Uint8Array(lines * size * channels);
  const weights = coefficients(length, from, to, size);
  const step = (isRow ? 1 : image.width) * channels;
  const line = (isRow ? image.width : 1) * channels;
  const madeStep = (isRow ? 1 : image.width) * channels;
  const madeLine = (isRow ? size : 1) * channels;
  for (let i = 0; i < size; i += 1) {
    const { first, ks } = weights[i];
    for (let l = 0; l < lines; l += 1) {
      for (let c = 0; c < channels; c += 1) {
        let sum = PRECISION / 2;
        for (let k = 0; k < ks.length; k += 1) sum += pixels[l * line + (first + k) * step + c] * ks[k];
        made[l * madeLine + i * madeStep + c] = Math.min(255, Math.max(0, Math.floor(sum / PRECISION)));
      }
    }
  }
  return {
    pixels: made, channels, width: isRow ? size : image.width, height: isRow ? image.height : size,
  };
}

// The pixels that make each new one, and their weights as whole numbers.
function coefficients(length, from, to, size) {
  const scale = (to - from) / size;
  const wide = Math.max(1, scale);
  return Array.from({ length: size }, (_, i) => {
    const center = from + (i + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - SUPPORT * wide + 0.5));
    const last = Math.min(length, Math.trunc(center + SUPPORT * wide + 0.5));
    const ks = Array.from({ length: last - first }, (__, k) => bicubic((k + first - center + 0.5) / wide));
    const sum = ks.reduce((a, b) => a + b, 0);
    return { first, ks: ks.map((k) => rounded((k / sum) * PRECISION)) };
  });
}

const rounded = (x) => Math.trunc(x < 0 ? x - 0.5 : x + 0.5);

function bicubic(distance) {
  const a = -0.5;
  const x = Math.abs(distance);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}
