"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const ABOUT = {
    aleatoric: "the picture and the question, before any answer",
    epistemic: "its answers",
    competence: "how often it went wrong on the like",
    novelty: "unlike the calibration",
  };
  const HIGH = { novelty: 0.99 };
  let picture = "";      // a data URL
  let last = null;       // the last answer
  let inRounds = false;  // whether its samples were drawn for its risk
  let running = null;    // what stops the request under way
  let turn = 0;          // replies to older questions are dropped

  const percent = (x) => `${+(100 * x).toPrecision(3)} %`;
  const risk = () => data.risks[+at("risk").value];
  const show = (id, yes) => { at(id).hidden = !yes; };
  const put = (id, text) => { at(id).textContent = text; };

  function element(tag, text, name) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (name) made.className = name;
    return made;
  }

  function bar(share, high) {
    const outer = element("div", undefined, "bar");
    const inner = element("i", undefined, high ? "high" : "");
    inner.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
    outer.append(inner);
    outer.setAttribute("aria-hidden", "true");
    return outer;
  }

  function fill(list, rows) {
    list.replaceChildren(...rows.flatMap(([name, share, told, high, about]) => {
      const dt = element("dt", name);
      if (about) dt.append(document.createElement("br"), element("small", about));
      const middle = element("dd");
      middle.append(bar(share, high));
      return [dt, middle, element("dd", told)];
    }));
  }

  function showSamples(samples) {
    const rows = Object.entries(samples);
    const n = rows.reduce((sum, row) => sum + row[1], 0);
    put("count", n ? `(${n})` : "");
    fill(at("samples"), rows.slice(0, 8).map(([text, k]) => [text || "(nothing)", k / n, String(k)]));
    show("samples-part", n > 0);
  }

  function showAnswer(answer) {
    last = answer;
    const given = answer.decision === "answer";
    at("verdict").className = `verdict ${answer.decision}`;
    put("word", given ? "" : "I don't know.");
    put("answer", given ? answer.answer || "(nothing)" : `It would say: ${answer.answer || "(nothing)"}`);
    put("why", answer.why);
    put("p-wrong", answer.p_wrong === null ? "not known" : answer.p_wrong.toFixed(2));
    put("rule", answer.threshold === null
      ? `At risk ${percent(answer.risk)} nothing can be certified: it answers nothing.`
      : `At risk ${percent(answer.risk)} it answers ${percent(answer.coverage)} of queries like the calibration's; `
        + `of those answers at most ${percent(answer.risk)} are wrong (with probability ${+(1 - answer.delta).toFixed(4)}).`);
    fill(at("bars"), Object.entries(answer.bars).map(([name, value]) =>
      [name, value, `${Math.round(100 * value)} %`, value >= (HIGH[name] || 0.9), ABOUT[name]]));
    showSamples(answer.samples);
    at("near").replaceChildren(...answer.neighbours.map((one) => {
      const row = element("li", `${one.question} → ${one.answer || "(nothing)"} `);
      row.append(element("span", one.wrong ? "wrong" : "right", one.wrong ? "wrong" : "right"));
      return row;
    }));
    put("notes", answer.notes.join(" "));
    show("verdict", true);
    show("bars-part", Object.keys(answer.bars).length > 0);
    show("near-part", answer.neighbours.length > 0);
    show("feedback", data.feedback);
    put("thanks", "");
  }

  function clear() {
    last = null;
    for (const id of ["verdict", "bars-part", "samples-part", "near-part", "feedback", "nothing"]) show(id, false);
    put("trouble", "");
    put("notes", "");
  }

  function trouble(text) {
    put("progress", "");
    put("trouble", text);
  }

  async function post(path, body, signal) {
    const headers = { "Content-Type": "application/json" };
    if (at("token").value) headers.Authorization = `Bearer ${at("token").value}`;
    const reply = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
    if (reply.ok) return reply;
    if (reply.status === 401) {
      show("token-row", true);
      at("token").focus();
    }
    let told = `the server answered ${reply.status}.`;
    try { told = (await reply.json()).error.message; } catch { /* no JSON: its status must do */ }
    throw new Error(told);
  }

  async function* events(reply) {
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
        const [first, second] = text.slice(0, end).split("\n");
        yield [first.slice(7), JSON.parse(second.slice(6))];
      }
    }
  }

  async function ask() {
    const question = at("question").value.trim();
    if (!question) {
      trouble("Type a question first.");
      at("question").focus();
      return;
    }
    if (running) running.abort();
    const own = running = new AbortController();
    const mine = ++turn;
    clear();
    put("progress", "Waiting for the first samples …");
    at("result-title").scrollIntoView({ block: "nearest" });
    show("stop", true);
    const body = { question, risk: risk(), stream: true };
    if (picture) body.image = picture;
    if (at("rounds").checked) body.samples = "as needed";
    inRounds = at("rounds").checked;
    let ended = false;
    try {
      const reply = await post("v1/ask", body, own.signal);
      for await (const [kind, told] of events(reply)) {
        if (mine !== turn) return;
        if (kind === "samples") {
          showSamples(told.samples);
          const p = told.p_wrong === null ? "" : `; P(wrong) ${told.p_wrong.toFixed(2)}`;
          put("progress", `${told.tier}: it would say ${told.answer || "(nothing)"}${p}`);
        } else if (kind === "answer") {
          ended = true;
          put("progress", "");
          showAnswer(told);
          if (told.risk !== risk()) decide();
        } else {
          ended = true;
          trouble(told.error.message);
        }
      }
      if (!ended) trouble("The connection ended before there was an answer. Ask again.");
    } catch (error) {
      if (mine === turn) trouble(error.name === "AbortError" ? "Stopped." : error.message);
    } finally {
      if (mine === turn) {
        running = null;
        show("stop", false);
      }
    }
  }

  let waiting = 0;
  function decide() {
    clearTimeout(waiting);
    if (!last) return;
    waiting = setTimeout(async () => {
      if (!last) return;
      if (inRounds) { ask(); return; }
      const mine = turn;
      try {
        const reply = await post("v1/decide", { id: last.id, risk: risk() });
        const found = await reply.json();
        if (mine === turn && found.risk === risk()) showAnswer(found);
      } catch (error) {
        trouble(error.message);
      }
    }, 120);
  }

  function take(file) {
    if (!file) return;
    if (!file.type.startsWith("image/")) {
      trouble("That is not a picture.");
      return;
    }
    const reader = new FileReader();
    reader.onload = () => setPicture(reader.result, `your picture ${file.name}`);
    reader.onerror = () => trouble("The picture cannot be read.");
    reader.readAsDataURL(file);
  }

  function setPicture(url, alt) {
    picture = url;
    at("shown").src = url;
    at("shown").alt = alt;
    show("shown", Boolean(url));
    show("remove", Boolean(url));
    put("trouble", "");
  }

  function setUp() {
    at("risk").max = String(data.risks.length - 1);
    at("risk").value = String(data.risks.indexOf(data.risk));
    const tell = () => { put("risk-value", percent(risk())); at("risk").setAttribute("aria-valuetext", percent(risk())); };
    tell();
    at("risk").addEventListener("input", () => { tell(); decide(); });
    show("rounds-label", data.rounds);
    show("examples", data.examples.length > 0);
    for (const example of data.examples) {
      const button = element("button", example.name);
      button.type = "button";
      button.title = example.about;
      button.addEventListener("click", () => {
        at("file").value = "";
        setPicture(example.image, example.alt);
        at("question").value = example.question;
        ask();
      });
      at("example-buttons").append(button);
    }
    at("form").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
    at("stop").addEventListener("click", () => { if (running) running.abort(); });
    at("file").addEventListener("change", () => take(at("file").files[0]));
    at("remove").addEventListener("click", () => { at("file").value = ""; setPicture("", ""); at("file").focus(); });
    const drop = at("drop");
    for (const name of ["dragover", "dragleave", "drop"]) {
      drop.addEventListener(name, (event) => {
        event.preventDefault();
        drop.classList.toggle("over", name === "dragover");
        if (name === "drop") take(event.dataTransfer.files[0]);
      });
    }
    document.addEventListener("paste", (event) => {
      const item = [...event.clipboardData.files].find((file) => file.type.startsWith("image/"));
      if (item) take(item);
    });
    for (const button of document.querySelectorAll("#feedback button")) {
      button.addEventListener("click", async () => {
        try {
          await post("v1/feedback", { id: last.id, wrong: button.dataset.wrong === "true" });
          put("thanks", "Kept, thank you.");
        } catch (error) {
          put("thanks", error.message);
        }
      });
    }
    document.documentElement.dataset.ready = "yes";
  }

  setUp();
})();
