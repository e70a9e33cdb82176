// Elements, messages and the dialog. Text is set as text, never as markup.

export const find = (selector) => document.querySelector(selector);

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("aria-")) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

export function say(text, good = false) {
  const place = find("#message");
  place.classList.toggle("good", good);
  place.textContent = text;
  place.hidden = !text;
}

// Run what a control (or nobody) starts; show its error, and let it not be started twice.
export async function attempt(control, work) {
  if (control) {
    control.disabled = true;
    say("");
  }
  try {
    return await work();
  } catch (error) {
    say(error.message);
    return undefined;
  } finally {
    if (control) control.disabled = false;
  }
}

// Ask for a confirmation, or for a name; resolves to null if it is cancelled.
export function ask(text, yes, name = null) {
  const dialog = find("#dialog");
  const field = find("#dialog-name");
  find("#dialog-text").textContent = text;
  find("#dialog-yes").textContent = yes;
  find("#dialog-field").hidden = name === null;
  field.required = name !== null;
  field.value = name ?? "";
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes" ? field.value : null),
      { once: true });
  });
}

export const pause = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });
export const count = (n, thing, things = `${thing}s`) => `${n.toLocaleString("en")} ${n === 1 ? thing : things}`;
export const percent = (share) => `${(100 * share).toFixed(share > 0.995 || share < 0.1 ? 1 : 0).replace(/\.0$/, "")} %`;

export function bytes(n) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (n >= size) return `${(n / size).toFixed(1)} ${unit}`;
  }
  return `${n} bytes`;
}
