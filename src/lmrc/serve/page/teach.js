// Teach: collect pictures of classes, learn them, keep or discard the result.

import { ApiError, call, follow, form } from "./api.js";
import { attempt, count, find, make, percent, say } from "./dom.js";
import { acceptDrops, byClass, Camera, pasted, shrink } from "./pictures.js";

const AT_ONCE = 8;  // pictures of a request
const REFUSED = ["too_many", "too_large", "invalid_request"];  // for what they are
const STAGES = {
  starting: "Starting…", preparing: "Reading the pictures…", "computing features": "Processing the pictures…",
  learning: "Learning…", writing: "Saving…", discarding: "Discarding…",
};

export function startTeach(state) {
  const cards = [];
  let job = null;  // the task that collects pictures
  let period = 0;  // counts the changes of model
  let turn = Promise.resolve();  // the last request
  let sending = false;  // before the task is learnt
  let following = null;
  const gone = new Set();  // what the server still has of the pictures that were removed
  const own = new Set();  // the tasks that this page had learnt

  // ---- pictures ----

  // Requests go one after another: two at once would begin a task each.
  function inTurn(action) {
    const done = turn.then(action).catch((error) => {
      if (!["no_job", "not_collecting"].includes(error.code)) throw error;
      forget();  // the server has dropped the task: all pictures are still here
      return action();
    });
    turn = done.catch(() => {});
    return done;
  }

  const all = () => cards.flatMap((card) => card.pictures);

  function forget() {
    job = null;
    gone.clear();
    for (const picture of all()) picture.id = picture.label = null;
  }

  function abandon() {
    if (job) call("DELETE", `/v1/jobs/${job}`).catch(() => {});
    forget();
  }

  const upload = () => attempt(null, () => inTurn(sync));

  async function task() {
    const now = period;
    const id = job ?? (await call("POST", `${state.address}/jobs`)).id;
    if (now !== period) {  // it is of the model before
      call("DELETE", `/v1/jobs/${id}`).catch(() => {});
      throw new ApiError("no_job", "the model was changed");
    }
    job = id;
    return id;
  }

  // Bring the server's pictures up to date: remove, rename, add.
  async function sync() {
    await state.ready;
    await clear();
    for (const card of [...cards]) {
      const renamed = card.pictures.filter((p) => p.id && card.label && p.label !== card.label);
      if (!renamed.length) continue;
      const { label } = card;
      await move(renamed.map((p) => p.id), label);
      for (const picture of renamed) picture.label = label;
    }
    const unsent = (card) => card.pictures.filter((p) => card.label && !p.id && !p.learning);
    for (let card; (card = cards.find((c) => unsent(c).length));) {
      await send(card, unsent(card).slice(0, AT_ONCE), unsent(card));
    }
    await clear();  // of what was removed while it was sent
  }

  async function clear() {
    if (!job || !gone.size) return;
    const images = [...gone];
    await move(images, null);
    for (const id of images) gone.delete(id);
  }

  async function move(images, label) {
    note((await call("PATCH", `/v1/jobs/${await task()}/images`, { images, class: label })).findings);
  }

  async function send(card, pictures, left) {
    const { label } = card;
    const id = await task();
    let answer;
    try {
      answer = await call("POST", `/v1/jobs/${id}/images?label=${encodeURIComponent(label)}`,
        form("image", pictures.map((p) => p.file)));
    } catch (error) {
      if (!REFUSED.includes(error.code)) throw error;
      left.forEach(card.hide);
      card.tell(`${count(left.length, "picture")}: ${error.message}`);
      return;
    }
    if (id !== job) return;
    answer.added.forEach((added, i) => {
      const picture = pictures[i];
      Object.assign(picture, { id: added.id, label });
      if (added.error) {
        card.hide(picture);
        card.tell(`${picture.file.name}: ${added.error.message}`);
      } else if (!card.pictures.includes(picture)) gone.add(added.id);  // removed in the meantime
    });
    note(answer.findings);
  }

  function remove(pictures) {
    for (const picture of pictures) if (picture.id) gone.add(picture.id);
    if (gone.size) upload();
  }

  function note(found) {
    const flagged = new Set(found.flatMap((f) => f.images));
    for (const card of cards) card.flag(flagged);
    find("#findings ul").replaceChildren(...found.slice(0, 20).map((f) => make("li", { textContent: f.message })));
    find("#findings").hidden = !found.length;
    ready();
  }

  const full = () => cards.filter((card) => card.pictures.length);

  // Say what is missing before anything can be learnt.
  function missing() {
    if (full().some((card) => !card.typed)) return "Give each class a name.";
    const few = state.model?.empty && new Set(full().map((card) => card.typed)).size < 2;
    return few ? "Add pictures of two classes or more." : "";
  }

  function ready() {
    const busy = sending || cards.some((card) => card.busy);
    find("#learn").disabled = !full().length || missing() || busy;
    find("#learn-hint").textContent = sending ? "Sending the pictures…" : missing();
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

    const card = {
      element, pictures: [], busy: 0, label: name, hide,
      get typed() { return input.value.trim(); },
      focus: () => input.focus(),
      async take(found) {
        say("");
        card.label = card.typed;  // the field may keep the focus: it tells of its change later
        if (!card.label) input.focus();
        problems.replaceChildren();
        problems.hidden = true;
        card.busy += 1;
        ready();
        for (let i = 0; i < found.length; i += AT_ONCE) {
          const part = found.slice(i, i + AT_ONCE);
          const files = await Promise.all(part.map((file) => shrink(file).catch(() => null)));
          files.forEach((file, n) => (file ? show(file) : card.tell(`${part[n].name}: it cannot be read`)));
          await upload();
        }
        card.busy -= 1;
        ready();
      },
      tell(problem) {
        problems.append(make("li", { textContent: problem }));
        problems.hidden = false;
      },
      flag: (ids) => card.pictures.forEach((p) => p.element.classList.toggle("flagged", ids.has(p.id))),
      drop() {
        cards.splice(cards.indexOf(card), 1);
        element.remove();
        card.pictures = [];  // some may be on their way
        if (!cards.length) addClass();
        ready();
      },
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

    function show(file) {
      // Id and class are as the server has it.
      const picture = { file, id: null, label: null, learning: false };
      const address = URL.createObjectURL(file);
      const image = make("img", { src: address, alt: file.name });
      image.addEventListener("load", () => URL.revokeObjectURL(address), { once: true });
      const cross = make("button", { type: "button", textContent: "×", "aria-label": `Remove ${file.name}` });
      cross.addEventListener("click", () => {
        (picture.element.nextSibling?.querySelector("button") ?? files).focus();
        hide(picture);
        remove([picture]);
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

    input.addEventListener("input", ready);
    input.addEventListener("change", () => {
      card.label = card.typed;
      upload();
    });
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
      remove(card.pictures);
      card.drop();
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
    const { classes, aside, beside, unread } = byClass(event.target.files);
    event.target.value = "";
    for (const [name, files] of [...classes].sort(([a], [b]) => a.localeCompare(b))) {
      const spare = cards.find((card) => card.typed === name) ?? cards.find((card) => !card.typed && !card.pictures.length);
      if (spare && !spare.typed) spare.element.querySelector("input").value = name;
      (spare ?? addClass(name)).take(files);
    }
    const told = [...unread].map(([suffix, n]) => `Left out ${count(n, `${suffix} file`)}: convert to JPEG or PNG.`);
    if (aside.size) {
      const places = [...aside].map(([name, n]) => `${n.toLocaleString("en")} in ${name}`).join(", ");
      told.push(`Took the pictures in train; left out those for testing: ${places}.`);
    }
    if (beside) told.push(`Left out ${count(beside, "picture")} outside of the folders of classes.`);
    if (!classes.size) told.unshift("There are no pictures in this folder.");
    if (told.length) say(told.join(" "));
  });

  // ---- learn ----

  find("#learn").addEventListener("click", (event) => attempt(event.target, async () => {
    for (const card of cards) card.stop();
    const now = period;
    sending = true;
    ready();
    const learnt = await inTurn(async () => {
      if (now !== period) return null;
      await sync();
      if (missing()) throw new Error(missing());  // pictures were refused
      const id = await task();
      own.add(id);
      const pictures = all();
      for (const picture of pictures) picture.learning = true;
      try {
        await call("POST", `/v1/jobs/${id}/learn`, {});
      } catch (error) {
        for (const picture of pictures) picture.learning = false;
        throw error;
      }
      forget();
      return id;
    }).finally(() => { sending = false; });
    if (learnt && now === period) attempt(null, () => watch(learnt));
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
    if (following !== id) return;
    following = null;
    showPart("edit");
    const kept = last?.state === "kept";
    if (last?.state !== "failed") find("#warnings").replaceChildren();
    if (kept) say("");
    else if (last?.error) {
      say(`${last.error.message}. The model is as it was; the pictures are still on this page.`);
    } else if (!["discarded", "cancelled"].includes(last?.state)) {
      say("The server does not know this task any more. The model is as it was.");
    }
    if (own.has(id)) {
      for (const card of [...cards]) {
        const learnt = card.pictures.filter((p) => p.learning);
        for (const picture of learnt) picture.learning = false;
        if (!kept) continue;
        learnt.forEach(card.hide);
        if (learnt.length && !card.pictures.length) card.drop();
      }
      upload();  // what is left goes into a new task
    }
    if (kept) note([]);
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
        rows.push([`Accuracy on ${result.left_out ? "" : "held-out "}pictures of ${name}`,
          `${percent(result[`${key}_accuracy`])} of ${count(result[`${key}_tested`], "picture")}${result.left_out ? ", each tested without it" : ""}`]);
      }
    }
    if (!rows.length) rows.push(["Accuracy", "not measured: too few pictures to hold some out"]);
    const tested = (result.new_tested ?? 0) + (result.old_tested ?? 0);
    const more = tested && !result.left_out ? `; ${tested.toLocaleString("en")} more were only used to test` : "";
    rows.push(["Learnt from", count(result.images, "picture") + more], ["Time", duration(result.seconds)]);
    find("#accuracy").replaceChildren(...rows.flatMap(([term, text]) => [
      make("dt", { textContent: term }), make("dd", { textContent: text })]));
  }

  function showPart(part) {
    find("#teach-edit").hidden = part !== "edit";
    find("#progress").hidden = part !== "progress";
    find("#result").hidden = part !== "result";
  }

  window.addEventListener("beforeunload", (event) => {
    if (all().some((picture) => !picture.learning)) event.preventDefault();  // the browser asks
  });

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
      following = null;
      period += 1;
      abandon();
      cards.splice(0).forEach((card) => card.element.remove());
      addClass();
      addClass();
      note([]);
      showPart("edit");
    },
  };
}

const duration = (seconds) => (seconds < 100 ? `${Math.max(1, Math.round(seconds))} s` : `${Math.round(seconds / 60)} min`);
