// Teach: collect pictures of classes, learn them, keep or discard the result.

import { call, follow, form } from "./api.js";
import { attempt, count, find, make, percent, say } from "./dom.js";
import { acceptDrops, Camera, pasted, shrink } from "./pictures.js";

const AT_ONCE = 8;  // pictures of a request
const STAGES = {
  starting: "Starting…", preparing: "Reading the pictures…", "computing features": "Processing the pictures…",
  learning: "Learning…", writing: "Saving…", discarding: "Discarding…",
};

export function startTeach(state) {
  const cards = [];
  let job = null;  // the task that collects pictures
  let following = null;
  let findings = [];

  // ---- pictures ----

  async function task() {
    await state.ready;
    if (!job) job = (await call("POST", `${state.address}/jobs`)).id;
    return job;
  }

  async function upload(card, pictures) {
    const send = async () => call("POST", `/v1/jobs/${await task()}/images?label=${encodeURIComponent(card.label)}`,
      form("image", pictures.map((p) => p.file)));
    let answer;
    try {
      answer = await send();
    } catch (error) {
      if (!["no_job", "not_collecting"].includes(error.code)) throw error;
      await again();  // the server has dropped the task: all pictures are still here
      answer = await send();
    }
    answer.added.forEach((added, i) => {
      pictures[i].id = added.id;
      if (added.error) card.refuse(pictures[i], added.error.message);
    });
    note(answer.findings);
  }

  async function again() {
    job = null;
    for (const card of cards) {
      const sent = card.pictures.filter((p) => p.id);
      for (let i = 0; i < sent.length; i += AT_ONCE) await upload(card, sent.slice(i, i + AT_ONCE));
    }
  }

  async function remove(picture) {
    if (!picture.id || !job) return;
    const { findings: left } = await call("DELETE", `/v1/jobs/${job}/images/${picture.id}`)
      .catch(() => ({ findings }));
    note(left);
  }

  function note(found) {
    findings = found;
    const flagged = new Set(found.flatMap((f) => f.images));
    for (const card of cards) card.flag(flagged);
    find("#findings ul").replaceChildren(...found.slice(0, 20).map((f) => make("li", { textContent: f.message })));
    find("#findings").hidden = !found.length;
    ready();
  }

  function ready() {
    const full = cards.filter((card) => card.pictures.some((p) => p.id));
    const first = state.model?.empty && full.length < 2;
    find("#learn").disabled = !full.length || first || cards.some((card) => card.busy);
    find("#learn-hint").textContent = first ? "Add pictures of two classes or more." : "";
  }

  // ---- classes ----

  function addClass(name = "") {
    const card = classCard(name);
    cards.push(card);
    find("#classes").append(card.element);
    ready();
    return card;
  }

  function classCard(name) {
    const input = make("input", { value: name, maxLength: 100, placeholder: "Name of the class", autocomplete: "off" });
    input.setAttribute("list", "known");
    const tally = make("span", { className: "count", textContent: "no pictures" });
    const removeClass = make("button", { type: "button", className: "quiet", textContent: "Remove class" });
    const files = make("input", { type: "file", accept: "image/*", multiple: true });
    const drop = make("label", { className: "drop small" }, files,
      make("span", {}, make("b", { textContent: "Drop pictures here" }), ", paste them, or choose files"));
    const record = make("button", { type: "button", textContent: "Use the webcam", "aria-pressed": "false" });
    const shoot = make("button", { type: "button", textContent: "Take a picture", hidden: true });
    const video = make("video", { muted: true, playsInline: true });
    const live = make("figure", { className: "live", hidden: true }, video);
    const thumbs = make("ul", { className: "thumbs", "aria-label": "Pictures" });
    const problems = make("ul", { className: "problems", hidden: true });
    const element = make("div", { className: "class-card" },
      make("p", { className: "row" }, make("label", {}, "Class ", input), tally, removeClass),
      drop, make("p", { className: "row" }, record, shoot), live, thumbs, problems);
    element.role = "group";
    const camera = new Camera(video);
    let label = name;

    const card = {
      element, pictures: [], busy: 0,
      get label() { return input.value.trim(); },
      focus: () => input.focus(),
      async take(found) {
        if (!card.label) {
          say("First give the class a name.");
          input.focus();
          return;
        }
        say("");
        label = card.label;  // the field may keep the focus: it tells of its change later
        problems.replaceChildren();
        problems.hidden = true;
        card.busy += 1;
        ready();
        try {
          for (let i = 0; i < found.length; i += AT_ONCE) {
            const part = (await Promise.all(found.slice(i, i + AT_ONCE).map(shrink)))
              .map((file) => ({ file, id: null }));
            part.forEach(show);
            await upload(card, part);
          }
        } catch (error) {
          say(error.message);
          for (const picture of card.pictures.filter((p) => !p.id)) hide(picture);
        } finally {
          card.busy -= 1;
          recount();
        }
      },
      refuse(picture, message) {
        hide(picture);
        problems.append(make("li", { textContent: `${picture.file.name}: ${message}` }));
        problems.hidden = false;
      },
      flag: (ids) => card.pictures.forEach((p) => p.element.classList.toggle("flagged", ids.has(p.id))),
      stop() {
        camera.stop();
        live.hidden = shoot.hidden = true;
        record.textContent = "Use the webcam";
        record.setAttribute("aria-pressed", "false");
      },
    };

    function recount() {
      tally.textContent = card.pictures.length ? count(card.pictures.length, "picture") : "no pictures";
      ready();
    }

    function show(picture) {
      const address = URL.createObjectURL(picture.file);
      const image = make("img", { src: address, alt: picture.file.name });
      image.addEventListener("load", () => URL.revokeObjectURL(address), { once: true });
      const cross = make("button", { type: "button", textContent: "×", "aria-label": `Remove ${picture.file.name}` });
      cross.addEventListener("click", () => {
        hide(picture);
        remove(picture);
      });
      picture.element = make("li", {}, image, cross);
      thumbs.append(picture.element);
      card.pictures.push(picture);
      recount();
    }

    function hide(picture) {
      picture.element.remove();
      card.pictures = card.pictures.filter((p) => p !== picture);
      recount();
    }

    input.addEventListener("change", () => attempt(null, async () => {
      if (!card.label || card.label === label) return;
      label = card.label;
      const sent = card.pictures.filter((p) => p.id);
      const old = sent.map((p) => ({ id: p.id }));
      card.busy += 1;
      ready();
      try {
        for (let i = 0; i < sent.length; i += AT_ONCE) await upload(card, sent.slice(i, i + AT_ONCE));
        for (const picture of old) await remove(picture);
      } finally {
        card.busy -= 1;
        ready();
      }
    }));
    files.addEventListener("change", () => {
      card.take([...files.files]);
      files.value = "";
    });
    acceptDrops(drop, card.take);
    element.addEventListener("paste", (event) => {
      if (pasted(event).length) card.take(pasted(event));
    });
    removeClass.addEventListener("click", () => {
      card.stop();
      card.pictures.forEach(remove);
      cards.splice(cards.indexOf(card), 1);
      element.remove();
      if (!cards.length) addClass();
      ready();
    });
    record.addEventListener("click", () => attempt(record, async () => {
      if (camera.stream) {
        card.stop();
        return;
      }
      await camera.start();
      live.hidden = shoot.hidden = false;
      record.textContent = "Stop the webcam";
      record.setAttribute("aria-pressed", "true");
    }));
    shoot.addEventListener("click", () => attempt(null, async () => card.take([await camera.frame()])));
    return card;
  }

  find("#add-class").addEventListener("click", () => addClass().focus());
  find("#add-folder").addEventListener("change", (event) => {
    const classes = new Map();  // by the folder that a picture is in
    for (const file of event.target.files) {
      const path = file.webkitRelativePath.split("/");
      if (/\.(jpe?g|png|gif|bmp|webp|tiff?)$/i.test(file.name) && path.length > 1) {
        const name = path.at(-2);
        classes.set(name, [...(classes.get(name) ?? []), file]);
      }
    }
    event.target.value = "";
    for (const [name, files] of classes) {
      const spare = cards.find((card) => card.label === name) ?? cards.find((card) => !card.label && !card.pictures.length);
      if (spare && !spare.label) spare.element.querySelector("input").value = name;
      (spare ?? addClass(name)).take(files);
    }
    if (!classes.size) say("There are no pictures in this folder.");
  });

  // ---- learn ----

  find("#learn").addEventListener("click", (event) => attempt(event.target, async () => {
    for (const card of cards) card.stop();
    const { id } = await call("POST", `/v1/jobs/${await task()}/learn`, {});
    job = null;
    attempt(null, () => watch(id));
  }).then(ready));
  find("#cancel").addEventListener("click", (event) => attempt(event.target, () => call("DELETE", `/v1/jobs/${following}`)));
  for (const decision of ["keep", "discard"]) {
    find(`#${decision}`).addEventListener("click", (event) => attempt(event.target, () => call("POST", `/v1/jobs/${following}/${decision}`)));
  }

  async function watch(id) {
    if (following === id) return;
    following = id;
    let last = null;
    for await (const found of follow(id, (lost) => { find("#left").textContent = lost ? "The connection is lost. Trying again…" : ""; })) {
      if (following !== id) return;
      last = found;
      showJob(found);
    }
    following = null;
    showPart("edit");
    if (last?.state === "kept") {
      say("");
      cards.splice(0).forEach((card) => card.element.remove());
      addClass();
      note([]);
    } else if (last?.error) {
      say(`${last.error.message}. The model is as it was; the pictures are still on this page.`);
    } else if (!last || !["discarded", "cancelled"].includes(last.state)) {
      say("The server does not know this task any more. The model is as it was.");
    }
    if (last?.state !== "kept") attempt(null, again);  // the pictures go into a new task
    await state.refresh();
    if (last?.state === "kept" && state.view === "teach") state.open("classify");
  }

  function showJob(found) {
    const { done, total, seconds_left: left } = found.progress;
    find("#stage").textContent = STAGES[found.stage] ?? "Learning…";
    const bar = find("#bar");
    if (total && ["learning", "computing features"].includes(found.stage)) {
      bar.max = total;
      bar.value = done;
      find("#left").textContent = left === null ? "" : `About ${duration(left)} left.`;
    } else {
      bar.removeAttribute("value");
      find("#left").textContent = "";
    }
    find("#warnings").replaceChildren(...found.warnings.map((text) => make("li", { textContent: text })));
    if (found.state === "waiting" && find("#result").hidden) {
      showAccuracy(found.result);
      showPart("result");
      find("#result h2").focus();
    } else if (found.state === "learning") {
      showPart("progress");
    }
  }

  function showAccuracy(result) {
    const rows = [];
    for (const [key, name] of [["new", "new classes"], ["old", "known classes"]]) {
      if (`${key}_accuracy` in result) {
        rows.push([`Accuracy on held-out pictures of ${name}`,
          `${percent(result[`${key}_accuracy`])} of ${count(result[`${key}_tested`], "picture")}`]);
      }
    }
    if (!rows.length) rows.push(["Accuracy", "not measured: too few pictures to hold some out"]);
    rows.push(["Learnt from", count(result.images, "picture")], ["Time", duration(result.seconds)]);
    find("#accuracy").replaceChildren(...rows.flatMap(([term, text]) => [
      make("dt", { textContent: term }), make("dd", { textContent: text })]));
  }

  function showPart(part) {
    find("#teach-edit").hidden = part !== "edit";
    find("#progress").hidden = part !== "progress";
    find("#result").hidden = part !== "result";
  }

  addClass();
  addClass();
  return {
    async show() {
      ready();
      find("#exemplars").textContent = state.model.exemplars
        ? "The model stores some of them." : "They are never written to its disk, nor into the model.";
      const { jobs } = await call("GET", "/v1/jobs");  // perhaps another window has started one
      const active = jobs.find((j) => j.model === state.name && ["learning", "waiting"].includes(j.state));
      if (active) attempt(null, () => watch(active.id));
    },
    hide: () => cards.forEach((card) => card.stop()),
    reset() {
      following = job = null;
      cards.splice(0).forEach((card) => card.element.remove());
      addClass();
      addClass();
      note([]);
      showPart("edit");
    },
  };
}

const duration = (seconds) => (seconds < 100 ? `${Math.max(1, Math.round(seconds))} s` : `${Math.round(seconds / 60)} min`);
