// Model: classes, versions, sizes; rename, forget, roll back, download.

import { call, download } from "./api.js";
import { ask, attempt, bytes, count, find, make, percent } from "./dom.js";

export function startModel(state) {
  const change = (button, action, body) => attempt(button, async () => {
    await call("POST", `${state.address}/${action}`, body);
    await state.refresh();
  });

  find("#roll-back").addEventListener("click", async ({ target }) => {
    const text = "Delete the newest version, and use the previous one again?";
    if ((await ask(text, "Roll back")) !== null) await change(target, "rollback");
  });

  find("#get-onnx").addEventListener("click", ({ target }) => (
    attempt(target, () => download(`${state.address}/onnx`))));

  function classRow({ name, head }) {
    const label = String(name);
    const rename = make("button", { type: "button", textContent: "Rename", "aria-label": `Rename ${label}` });
    rename.addEventListener("click", async () => {
      const to = await ask(`Rename ${label}`, "Rename", label);
      if (to !== null && to !== label) await change(rename, "rename", { class: label, to });
    });
    const forget = make("button", { type: "button", textContent: "Forget", "aria-label": `Forget ${label}` });
    forget.addEventListener("click", async () => {
      const text = `Forget ${label}? It is deleted from all versions, and cannot be restored.`;
      if ((await ask(text, "Forget")) !== null) await change(forget, "forget", { class: label });
    });
    const buttons = state.readOnly ? [] : [rename, forget];
    return make("li", {}, make("span", { textContent: label }),
      make("span", { className: "hint", textContent: `task ${head}` }), ...buttons);
  }

  function versionRow(version) {
    const parts = [`Version ${version.version}`, new Date(version.saved).toLocaleString(),
      count(version.classes, "class", "classes")];
    if (version.images) parts.push(`learnt from ${count(version.images, "picture")}`);
    for (const [key, name] of [["new", "new"], ["old", "known"]]) {
      if (`${key}_accuracy` in version) parts.push(`accuracy ${percent(version[`${key}_accuracy`])} on ${name} classes`);
    }
    return make("li", {}, make("span", { textContent: parts.join(" · ") }));
  }

  let listed = "";

  return {
    show(model) {
      find("#model-name").textContent = model.name;
      const facts = [];
      if (model.problem) facts.push(model.problem);
      if (model.empty) facts.push("It has not learnt anything yet.");
      else {
        facts.push(`${count(model.classes.length, "class", "classes")}, ${bytes(model.bytes)}`);
        if (model.versions.length > 1) facts.push(`all versions ${bytes(model.bytes_of_all_versions)}`);
        if (model.input) facts.push(`pictures of ${model.input.width} × ${model.input.height} pixels`);
        if (model.backbone) facts.push(`${model.backbone}, ${model.parameters.toLocaleString("en")} parameters`);
      }
      find("#model-facts").textContent = facts.join(" · ");
      const stored = find("#stored");
      stored.classList.toggle("some", model.exemplars > 0);
      stored.textContent = `${count(model.exemplars, "picture")} stored in this model`;
      if (model.earlier_versions_with_exemplars) {
        stored.textContent += `, some in ${count(model.earlier_versions_with_exemplars, "earlier version")}`;
      }
      const classes = JSON.stringify([model.classes, state.readOnly]);
      if (classes !== listed) find("#class-list").replaceChildren(...model.classes.map(classRow));
      listed = classes;  // as long as it stays the same, a button in it keeps the focus
      find("#version-list").replaceChildren(...[...model.versions].reverse().map(versionRow));
      find("#roll-back").hidden = state.readOnly || model.versions.length < 2;
      find("#get-folder").href = `${state.address}/folder`;
      for (const link of [find("#get-onnx"), find("#get-folder")]) link.hidden = model.empty;
    },
    hide() {},
  };
}
