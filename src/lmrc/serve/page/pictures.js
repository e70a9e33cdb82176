// Pictures from files, folders, the clipboard and the webcam.

import { attempt, count, make, say } from "./dom.js";

const MOST = 640;  // pixels of the longer side: larger pictures are scaled down before they are sent

const READ = /\.(bmp|gif|jfif|jpe|jpe?g|png|tiff?|webp)$/i;
const NOT_READ = /\.(arw|avif|cr2|cr3|dng|hei[cf]|jp2|jxl|nef|psd)$/i;

const hidden = (part) => part.startsWith(".") || part === "__MACOSX";
const ASIDE = ["test", "val", "valid", "validation"];

// Sort the files of a folder by class, as the command line does: the names of its sub-folders, or of
// those of train/; without any, its own name. Also count the pictures that are left out. If no class
// has pictures of its own, these folders are probably one level above the classes.
export function byClass(files) {
  const all = [...files].map((file) => [file, file.webkitRelativePath.normalize("NFC").split("/")]);
  const found = all.filter(([, path]) => !path.slice(1).some(hidden));
  const pictures = found.filter(([file]) => READ.test(file.name));
  const top = (path) => path[1].toLowerCase();
  const below = new Set(found.filter(([, path]) => path.length > 3).map(([, path]) => top(path)));
  const others = found.some(([, path]) => path.length > 2 && !["train", ...ASIDE].includes(top(path)));
  const split = below.has("train") && (!others || ASIDE.some((name) => below.has(name)));
  const at = split ? 2 : 1;  // place of the class
  const nested = pictures.some(([, path]) => path.length > at + 1);
  const classes = new Map(), aside = new Map(), unread = new Map();
  let beside = 0;
  for (const [file, path] of pictures) {
    const name = path[nested ? at : 0];
    if (split && ASIDE.includes(top(path))) aside.set(path[1], (aside.get(path[1]) ?? 0) + 1);
    else if (nested && (path.length <= at + 1 || (split && top(path) !== "train"))) beside += 1;
    else classes.set(name, [...(classes.get(name) ?? []), file]);
  }
  const taken = new Set([...classes.values()].flat());
  const within = pictures.filter(([file]) => taken.has(file)).map(([, path]) => path.slice(at + 1, -1)[0]);
  const tooHigh = !within.includes(undefined) && new Set(within).size > 1;
  for (const [file] of found) {
    const [suffix] = file.name.toLowerCase().match(NOT_READ) ?? [];
    if (suffix) unread.set(suffix, (unread.get(suffix) ?? 0) + 1);
  }
  return { classes, aside, beside, unread, tooHigh };
}

export async function shrink(file) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
  } catch {
    return copy(file);  // the server says what is wrong with it
  }
  const scale = MOST / Math.max(bitmap.width, bitmap.height);
  if (scale >= 1) {
    bitmap.close();
    return copy(file);
  }
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return toFile(canvas, file.name);
}

// The file on the disk may be gone when it is sent.
const copy = async (file) => new File([await file.arrayBuffer()], file.name, { type: file.type });

async function toFile(canvas, name) {
  const blob = await new Promise((resolve) => { canvas.toBlob(resolve, "image/jpeg", 0.92); });
  return new File([blob], name, { type: "image/jpeg" });
}

// Let files be chosen in a label with an input, or dropped on it; the pictures in folders, too. If
// `ofOneClass`, refuse a folder whose sub-folders have pictures.
export function acceptFiles(label, take, ofOneClass = false) {
  const input = label.querySelector("input");
  input.addEventListener("change", () => {
    const files = [...input.files];
    input.value = "";
    take(files);
  });
  const over = (on) => (event) => {
    event.preventDefault();
    label.classList.toggle("over", on);
  };
  label.addEventListener("dragover", over(true));
  label.addEventListener("dragleave", over(false));
  label.addEventListener("drop", async (event) => {
    over(false)(event);
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
    if (!entries.some((entry) => entry.isDirectory)) {
      take([...event.dataTransfer.files]);
      return;
    }
    const found = (await Promise.all(entries.map(walk))).flat();
    const pictures = found.filter(({ name }) => READ.test(name));
    const nested = ofOneClass && pictures.map((entry) => entry.fullPath.split("/")).find((path) => path.length > 3);
    if (nested) {
      say(`${nested[1]} contains folders: use Add folders, one per class.`);
      return;
    }
    take(await Promise.all(pictures.map((entry) => new Promise((resolve, reject) => { entry.file(resolve, reject); }))));
    const others = found.length - pictures.length;
    if (others) say(`Left out ${count(others, "file")} not in a format that can be read, such as JPEG or PNG.`);
  });
}

// Return the entries of the visible files in a folder, at any depth.
async function walk(entry) {
  if (hidden(entry.name)) return [];
  if (entry.isFile) return [entry];
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const part = await new Promise((resolve, reject) => { reader.readEntries(resolve, reject); });
    if (!part.length) break;
    found.push(...(await Promise.all(part.map(walk))).flat());
  }
  return found;
}

export const pasted = (event) => [...(event.clipboardData?.files ?? [])].filter((f) => f.type.startsWith("image/"));

// Return an image element that shows a file.
export function preview(file, alt = "") {
  const address = URL.createObjectURL(file);
  const image = make("img", { src: address, alt });
  image.addEventListener("load", () => URL.revokeObjectURL(address), { once: true });
  image.addEventListener("error", () => { image.style.visibility = "hidden"; }, { once: true });  // no broken icon
  return image;
}

// A webcam that a button starts and stops, and the figure with a video element that shows it.
export class Camera {
  constructor(button, figure, changed) {
    Object.assign(this, { button, figure, changed, stream: null });
    this.video = figure.querySelector("video");
    button.addEventListener("click", () => attempt(button, () => (this.stream ? this.stop() : this.start())));
  }

  async start() {
    if (!navigator.mediaDevices) throw new Error("The webcam needs https, or the address localhost.");
    try {
      this.stream = await navigator.mediaDevices.getUserMedia({ video: { width: 640 }, audio: false });
    } catch (error) {
      throw new Error(`The webcam cannot be used: ${error.message}.`);
    }
    this.video.srcObject = this.stream;
    await this.video.play();
    this.show(true);
  }

  stop() {
    this.stream?.getTracks().forEach((track) => track.stop());
    this.stream = null;
    this.video.srcObject = null;
    this.show(false);
  }

  show(on) {
    this.figure.hidden = !on;
    this.button.textContent = on ? "Stop the webcam" : "Use the webcam";
    this.button.setAttribute("aria-pressed", String(on));
    this.changed(on);
  }

  frame() {
    const canvas = document.createElement("canvas");
    canvas.width = this.video.videoWidth;
    canvas.height = this.video.videoHeight;
    canvas.getContext("2d").drawImage(this.video, 0, 0);
    return toFile(canvas, `webcam-${Date.now()}.jpg`);
  }
}
