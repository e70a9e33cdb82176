// The page of one model that runs in the browser. The globals are those of ort.wasm.min.js,
// runtime.js and model.js.
/* global ort, RUNTIME, MODEL */

import { startClassify } from "./classify.js";
import { attempt, count, find } from "./dom.js";
import { pixelsOf } from "./pixels.js";

function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = characters.charCodeAt(i);
  return bytes;
}

async function load() {
  ort.env.wasm.numThreads = 1;  // more need headers that a plain file does not have
  ort.env.wasm.wasmBinary = bytesOf(RUNTIME.wasm);
  const glue = new Blob([bytesOf(RUNTIME.mjs)], { type: "text/javascript" });
  ort.env.wasm.wasmPaths = { mjs: URL.createObjectURL(glue) };
  const session = await ort.InferenceSession.create(bytesOf(MODEL.onnx), { executionProviders: ["wasm"] });
  RUNTIME.wasm = MODEL.onnx = "";
  return session;
}

// Return the prediction for one picture, in the form in which the server of lmrc gives it.
async function predictOne(session, file, top) {
  const { height, width, channels } = MODEL;
  let pixels;
  try {
    pixels = await pixelsOf(file, MODEL);
  } catch {
    return { error: { message: "This browser cannot read the file as a picture." } };
  }
  const images = new ort.Tensor("uint8", pixels, [1, height, width, channels]);
  const outputs = await session.run({ images });
  const { similarities, probabilities, unknown } = outputs;
  const order = [...similarities.data.keys()].sort((a, b) => similarities.data[b] - similarities.data[a] || a - b);
  const best = order.slice(0, top).map((i) => ({
    class: MODEL.classes[i], similarity: similarities.data[i], probability: probabilities?.data[i] ?? null,
  }));
  const known = !unknown || MODEL.unknown_threshold === null || unknown.data[0] <= MODEL.unknown_threshold;
  return { class: known ? best[0].class : null, known, best, error: null };
}

attempt(null, async () => {
  find("#title").textContent = MODEL.name;
  document.title = `${MODEL.name} · lmrc`;
  try {
    const session = await load();
    const predict = async (files, top) => {
      const predictions = [];
      for (const file of files) predictions.push(await predictOne(session, file, top));
      return predictions;
    };
    startClassify(predict).show({ empty: false });
    window.lmrc = { predict, pixelsOf: (file) => pixelsOf(file, MODEL) };  // for other scripts
  } finally {
    find("#classify-empty").hidden = true;
  }
  find("#about").textContent = `It knows ${count(MODEL.classes.length, "class", "classes")}: ${MODEL.classes.slice(0, 50).join(", ")}${MODEL.classes.length > 50 ? ", …" : ""}.`;
  for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());
});
