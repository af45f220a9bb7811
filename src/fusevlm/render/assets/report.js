// The page of a run: a risk that can be moved, charts, and a gallery of queries.
// All numbers are in #data; nothing is fetched. What is shown is written as text, never as HTML.
"use strict";
(() => {
  const D = JSON.parse(document.getElementById("data").textContent);
  const N = D.wrong.length;
  const $ = (id) => document.getElementById(id);
  const PAGE = 24, BINS = 10, POINTS = 400;
  const state = { method: D.method, at: 0, page: 0, confident: false };

  const percent = (x, digits = 0) => (x == null ? "–" : `${(100 * x).toFixed(digits)} %`);
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const title = (name) => D.methods.find((one) => one.name === name).title;

  function element(tag, facts = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(facts)) {
      if (name === "text") made.textContent = value;
      else if (value != null) made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child != null));
    return made;
  }

  // ------------------------------------------------------------------------------ decisions

  const rows = () => D.risks[state.method] || [];
  const row = () => rows()[state.at];

  // the rule of Fuse.decide: not novel, P(wrong) at most the cap, score at most the threshold
  function answered(method = state.method, theta = row() && row().threshold) {
    const u = D.compared[method].u, p = D.compared[method].p, rule = D.rules[method];
    const novelty = D.novelty[method];
    return D.wrong.map((_, i) =>
      theta != null && u[i] <= theta && (rule == null || (p[i] <= rule.cap && !(novelty && novelty[i] != null && novelty[i] <= rule.novelty_level))));
  }

  function wilson(errors, n, z = 1.96) {
    if (!n) return [0, 1];
    const share = errors / n, base = 1 + (z * z) / n;
    const centre = (share + (z * z) / (2 * n)) / base;
    const half = (z * Math.sqrt((share * (1 - share)) / n + (z * z) / (4 * n * n))) / base;
    return [Math.max(0, centre - half), Math.min(1, centre + half)];
  }

  function verdict() {
    const box = $("verdict"), now = row();
    box.replaceChildren();
    if (!now) {
      box.append(element("p", { text: `${title(state.method)} has no threshold with a guarantee.` }));
      return;
    }
    const given = answered(), count = given.filter(Boolean).length;
    const errors = given.filter((yes, i) => yes && D.wrong[i]).length;
    if (now.threshold == null) {
      box.append(element("p", { text: `At risk ${percent(now.wanted)} nothing can be certified with these calibration labels: no query is answered.` }));
    } else {
      const [low, high] = wilson(errors, count);
      box.append(
        element("p", {}, element("b", { text: `${count} of ${N} test queries are answered (${percent(count / N, 1)}).` }),
          ` Of those answers ${errors} are wrong: ${percent(count ? errors / count : null, 1)} (95 % interval ${percent(low, 1)} to ${percent(high, 1)}); promised were at most ${percent(now.wanted)}.`),
        element("p", { text: `Answered if u* ≤ ${now.threshold.toFixed(3)}; ${percent(now.certified, 1)} of the calibration queries kept for this were. If all were answered, ${percent(D.wrong.filter(Boolean).length / N, 1)} would be wrong.` }));
    }
    const left = new Map();
    given.forEach((yes, i) => {
      if (!yes) {
        const why = reasonOf(i, now.threshold);
        left.set(why, (left.get(why) || 0) + 1);
      }
    });
    const told = [...left].sort((a, b) => b[1] - a[1]).map(([why, n]) => `${n} ${why}`);
    if (told.length) box.append(element("p", { text: `Not answered: ${told.join(", ")}.` }));
  }

  function reasonOf(i, theta) {
    const rule = D.rules[state.method], novelty = D.novelty[state.method], p = D.compared[state.method].p;
    if (rule && novelty && novelty[i] != null && novelty[i] <= rule.novelty_level) return "unlike the calibration";
    if (theta == null) return "nothing certified";
    if (rule && p[i] > rule.cap) return "too likely wrong";
    return "too uncertain";
  }

  // ------------------------------------------------------------------------------ charts

  const order = (u) => d3.range(N).sort((a, b) => u[a] - u[b] || a - b);

  function thin(points) {
    if (points.length <= POINTS) return points;
    const step = (points.length - 1) / (POINTS - 1);
    return d3.range(POINTS).map((k) => points[Math.round(k * step)]);
  }

  // cumulative curves along rising u; queries of equal score come together
  function curves(u) {
    const sorted = order(u), total = d3.sum(D.wrong), found = [];
    let wrong = 0;
    sorted.forEach((i, k) => {
      wrong += D.wrong[i];
      if (k + 1 < N && u[sorted[k + 1]] === u[i]) return;
      const kept = k + 1;
      found.push({ coverage: kept / N, risk: wrong / kept, accuracy: 1 - wrong / kept, rejected: 1 - kept / N,
        fpr: (N - kept - (total - wrong)) / (N - total), tpr: (total - wrong) / total });
    });
    return found;
  }

  const cache = new Map();
  const curvesOf = (name) => {
    if (!cache.has(name)) cache.set(name, curves(D.u[name]));
    return cache.get(name);
  };

  function lines(x, y, extra = []) {
    const marks = [];
    for (const { name } of D.methods) {
      if (name === state.method) continue;
      marks.push(Plot.line(thin(curvesOf(name)), { x, y, stroke: color("dim"), strokeOpacity: 0.35, strokeWidth: 1, title: () => title(name) }));
    }
    marks.push(Plot.line(thin(curvesOf(state.method)), { x, y, stroke: color("accent"), strokeWidth: 2.5 }));
    return [...marks, ...extra];
  }

  const CHARTS = {
    roc: () => ({
      x: { label: "right answers flagged", domain: [0, 1] }, y: { label: "wrong answers flagged", domain: [0, 1] },
      marks: [Plot.line([[0, 0], [1, 1]], { stroke: color("line") }), ...lines("fpr", "tpr")],
      data: () => curvesOf(state.method).map((p) => ({ fpr: p.fpr, tpr: p.tpr })),
      about: `ROC of ${title(state.method)}: AUROC ${D.auroc[state.method] == null ? "undefined" : D.auroc[state.method].toFixed(3)}`,
    }),
    "risk-coverage": () => ({
      x: { label: "share answered", domain: [0, 1] }, y: { label: "share of those that is wrong" },
      marks: lines("coverage", "risk", [Plot.ruleY([d3.mean(D.wrong)], { stroke: color("line") })]),
      data: () => curvesOf(state.method).map((p) => ({ coverage: p.coverage, risk: p.risk })),
      about: `Risk–coverage curve of ${title(state.method)}`,
    }),
    rejection: () => ({
      x: { label: "share rejected", domain: [0, 1] }, y: { label: "accuracy of the rest" },
      marks: lines("rejected", "accuracy", [Plot.ruleY([1 - d3.mean(D.wrong)], { stroke: color("line") })]),
      data: () => curvesOf(state.method).map((p) => ({ rejected: p.rejected, accuracy: p.accuracy })),
      about: `Accuracy by rejection of ${title(state.method)}`,
    }),
    reliability: () => {
      const p = D.p[state.method];
      const bins = d3.range(BINS).map((k) => {
        const own = d3.range(N).filter((i) => Math.min(BINS - 1, Math.floor(p[i] * BINS)) === k);
        const errors = d3.sum(own, (i) => D.wrong[i]), [low, high] = wilson(errors, own.length);
        return { p: d3.mean(own, (i) => p[i]), rate: errors / own.length, low, high, count: own.length, left: k / BINS, right: (k + 1) / BINS };
      }).filter((bin) => bin.count);
      const most = d3.max(bins, (bin) => bin.count);
      return {
        x: { label: "P(wrong)", domain: [0, 1] }, y: { label: "share that was wrong", domain: [0, 1] },
        marks: [
          Plot.rectY(bins, { x1: "left", x2: "right", y: (bin) => (0.25 * bin.count) / most, fill: color("dim"), fillOpacity: 0.15 }),
          Plot.line([[0, 0], [1, 1]], { stroke: color("line") }),
          Plot.ruleX(bins, { x: "p", y1: "low", y2: "high", stroke: color("accent"), strokeWidth: 2 }),
          Plot.dot(bins, { x: "p", y: "rate", fill: color("accent"), r: 4, title: (bin) => `${bin.count} queries`, tip: true }),
        ],
        data: () => bins,
        about: `Reliability of ${title(state.method)}: ${bins.map((b) => `${b.count} queries at P ${b.p.toFixed(2)} were wrong in ${percent(b.rate)}`).join("; ")}`,
      };
    },
    densities: () => {
      const u = D.compared[state.method].u, theta = row() && row().threshold;
      const points = d3.range(N).map((i) => ({ u: u[i], answer: D.wrong[i] ? "wrong" : "right" }));
      const inner = u.slice().sort(d3.ascending), domain = [d3.quantileSorted(inner, 0.005), d3.quantileSorted(inner, 0.995)];
      return {
        x: { label: "u* (larger: less sure)", domain }, y: { label: "queries" },
        color: { domain: ["right", "wrong"], range: [color("right"), color("wrong")], legend: true },
        marks: [
          Plot.rectY(points, Plot.binX({ y: "count" }, { x: "u", fill: "answer", fillOpacity: 0.6, thresholds: 40 })),
          theta == null ? null : Plot.ruleX([theta], { stroke: color("ink"), strokeWidth: 2 }),
          theta == null ? null : Plot.text([theta], { x: (t) => t, text: () => "threshold", dy: -6, frameAnchor: "top", textAnchor: "start", dx: 4, fill: color("ink") }),
        ],
        data: () => points,
        about: `Scores of right and wrong answers of ${title(state.method)}; ${theta == null ? "no threshold" : `threshold ${theta.toFixed(3)}`}`,
      };
    },
    kept: () => {
      const all = rows().filter((one) => one.threshold != null), now = row();
      return {
        x: { label: "wanted risk", percent: true }, y: { label: "share", percent: true, domain: [0, 100] },
        color: { domain: ["answered", "wrong among them", "promised"], range: [color("right"), color("wrong"), color("dim")], legend: true },
        marks: [
          Plot.line(all, { x: "wanted", y: "coverage", stroke: () => "answered", strokeWidth: 2 }),
          Plot.dot(all, { x: "wanted", y: "coverage", fill: () => "answered" }),
          Plot.line(all, { x: "wanted", y: "risk", stroke: () => "wrong among them", strokeWidth: 2 }),
          Plot.dot(all, { x: "wanted", y: "risk", fill: () => "wrong among them" }),
          Plot.line(all, { x: "wanted", y: "wanted", stroke: () => "promised", strokeDasharray: "4 3" }),
          now ? Plot.ruleX([now.wanted], { stroke: color("ink") }) : null,
        ],
        data: () => rows(),
        about: `Coverage and observed risk of ${title(state.method)} by wanted risk: ${all.map((one) => `${percent(one.wanted)}: ${percent(one.coverage)} answered, ${percent(one.risk, 1)} wrong`).join("; ")}`,
      };
    },
    sources: () => {
      if (!D.own) return null;
      const points = d3.range(N).map((i) => ({ prior: D.own.m0[i], evidence: D.own.u_hat[i], answer: D.wrong[i] ? "wrong" : "right", question: D.question[i] }));
      return {
        x: { label: "prior mean: before any answer" }, y: { label: "evidence: from the answers" },
        color: { domain: ["right", "wrong"], range: [color("right"), color("wrong")], legend: true },
        marks: [
          Plot.dot(points.filter((p) => p.answer === "right"), { x: "prior", y: "evidence", fill: "answer", r: 2, fillOpacity: 0.45 }),
          Plot.dot(points.filter((p) => p.answer === "wrong"), { x: "prior", y: "evidence", fill: "answer", r: 2.6, fillOpacity: 0.8 }),
          Plot.tip(points, Plot.pointer({ x: "prior", y: "evidence", title: "question" })),
        ],
        data: () => points,
        about: `Prior against evidence of ${title(D.method)}, ${N} queries`,
      };
    },
    novelty: () => {
      const p = D.novelty[state.method];
      if (!p || p.every((one) => one == null)) return null;
      const points = p.map((value, i) => ({ p: value, answer: D.wrong[i] ? "wrong" : "right" })).filter((one) => one.p != null);
      return {
        x: { label: "p-value", domain: [0, 1] }, y: { label: "queries" },
        color: { domain: ["right", "wrong"], range: [color("right"), color("wrong")], legend: true },
        marks: [Plot.rectY(points, Plot.binX({ y: "count" }, { x: "p", fill: "answer", fillOpacity: 0.6, thresholds: 20 })), Plot.ruleY([0])],
        data: () => points,
        about: `p-values of being like the calibration; ${points.filter((one) => one.p <= D.rules[state.method].novelty_level).length} queries are called novel`,
      };
    },
    costs: () => {
      const known = [...new Set(D.costs.map((one) => one.risk))], now = row();
      if (!known.length) return null;
      const risk = now ? d3.least(known, (one) => Math.abs(one - now.wanted)) : known[0];
      const points = d3.sort(D.costs.filter((one) => one.risk === risk), (one) => one.answers);
      const mine = points.filter((one) => one.budget !== null || one.samples === null);
      const names = [...new Set(points.map((one) => one.method))];
      return {
        marginRight: 130,
        x: { label: "generated answers a query", type: "log", base: 2, ticks: d3.range(11).map((k) => 2 ** k).filter((k) => k <= points.at(-1).answers), tickFormat: d3.format("~g") }, y: { label: `certified at risk ${percent(risk)}`, percent: true, grid: true, zero: true },
        marks: [
          Plot.line(points.filter((one) => !mine.includes(one)), { x: "answers", y: "coverage", z: "method", stroke: color("dim"), strokeOpacity: 0.45 }),
          Plot.dot(points.filter((one) => !mine.includes(one)), { x: "answers", y: "coverage", fill: color("dim"), fillOpacity: 0.6, r: 2.5 }),
          Plot.line(mine, { x: "answers", y: "coverage", stroke: color("accent"), strokeWidth: 2.5 }),
          Plot.dot(mine, { x: "answers", y: "coverage", fill: color("accent"), r: 4 }),
          Plot.text(points, Plot.selectLast({ x: "answers", y: "coverage", z: "method", text: "method", textAnchor: "start", dx: 8, fill: color("ink") })),
          Plot.tip(points, Plot.pointer({ x: "answers", y: "coverage", title: (one) => `${one.method}: ${one.answers.toFixed(2)} answers, ${percent(one.coverage, 1)} answered, ${percent(one.observed, 1)} of them wrong` })),
        ],
        data: () => D.costs,
        about: `Certified coverage against generated answers at risk ${percent(risk)}: ${names.map((name) => `${name} ${points.filter((one) => one.method === name).map((one) => `${one.answers.toFixed(1)} answers ${percent(one.coverage)}`).join(", ")}`).join("; ")}`,
      };
    },
    slices: () => {
      const given = answered(), found = [];
      for (const [name, values] of Object.entries(D.columns)) {
        for (const value of [...new Set(values)].sort(d3.ascending)) {
          const own = d3.range(N).filter((i) => values[i] === value), kept = own.filter((i) => given[i]);
          const slice = `${name} ${value}`;
          found.push({ slice, what: "answered", share: kept.length / own.length });
          if (kept.length) found.push({ slice, what: "wrong among them", share: d3.mean(kept, (i) => D.wrong[i]) });
        }
      }
      if (!found.length) return null;
      return {
        height: 26 * new Set(found.map((one) => one.slice)).size + 60, marginLeft: 150,
        x: { label: "share", percent: true, domain: [0, 100], grid: true }, y: { label: null, domain: [...new Set(found.map((one) => one.slice))] },
        color: { domain: ["answered", "wrong among them"], range: [color("right"), color("wrong")], legend: true },
        marks: [Plot.dot(found, { x: "share", y: "slice", fill: "what", r: 4, tip: true })],
        data: () => found,
        about: `By slice: ${found.map((one) => `${one.slice} ${one.what} ${percent(one.share)}`).join("; ")}`,
      };
    },
  };

  function save(name, text, kind) {
    const link = element("a", { href: URL.createObjectURL(new Blob([text], { type: kind })), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  const cell = (value) => {
    const text = value == null ? "" : String(value);
    const safe = /^[=+\-@\t\r]/.test(text) && isNaN(Number(text)) ? `'${text}` : text;
    return /[",\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };

  function tableOf(data) {
    const names = [...new Set(data.flatMap((one) => Object.keys(one)))];
    return [names.join(","), ...data.map((one) => names.map((name) => cell(one[name])).join(","))].join("\n") + "\n";
  }

  // one name for the whole picture; Plot's names of its parts are not for readers
  function named(svg, about) {
    svg.querySelectorAll("g").forEach((part) => ["aria-label", "aria-description"].forEach((one) => part.removeAttribute(one)));
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", about);
  }

  function chart(figure) {
    const name = figure.dataset.chart, made = CHARTS[name]();
    figure.hidden = made == null;
    if (made == null) return;
    const { data, about, ...options } = made;
    const drawn = Plot.plot({
      width: Math.max(280, figure.clientWidth - 20), height: options.height || 300, marginLeft: 50, marginBottom: 44, style: { background: "transparent", color: color("ink"), fontSize: "12px" },
      ...options, marks: options.marks.filter((mark) => mark != null),
    });
    const svg = drawn.tagName === "svg" ? drawn : drawn.querySelector(":scope > svg:last-of-type") || drawn.querySelector("svg");
    named(svg, about);
    const tools = element("div", { class: "tools" });
    const button = (label, act) => {
      const made = element("button", { type: "button", text: label, "aria-label": `${label} of: ${figure.querySelector("figcaption").textContent}` });
      made.addEventListener("click", act);
      return made;
    };
    tools.append(
      button("SVG", () => save(`${name}.svg`, new XMLSerializer().serializeToString(svg), "image/svg+xml")),
      button("CSV", () => save(`${name}.csv`, tableOf(data()), "text/csv")));
    figure.replaceChildren(figure.querySelector("figcaption"), drawn, tools);
  }

  const MOVED = ["densities", "kept", "slices", "costs"];
  const figures = () => [...document.querySelectorAll("figure[data-chart]")];
  const drawAll = () => figures().forEach(chart);
  const drawMoved = () => figures().filter((one) => MOVED.includes(one.dataset.chart)).forEach(chart);

  // ------------------------------------------------------------------------------ gallery

  const surprise = (i) => Math.abs((D.wrong[i] ? 1 : 0) - D.p[state.method][i]);

  function chosen() {
    const given = answered(), u = D.compared[state.method].u;
    const show = $("show").value, decision = $("decision").value, cause = $("cause").value, words = $("words").value.trim().toLowerCase();
    const [column, value] = $("slice").value ? JSON.parse($("slice").value) : [null, null];
    let found = D.gallery.filter((i) =>
      (!show || (show === "wrong") === Boolean(D.wrong[i])) &&
      (!decision || (decision === "answer") === given[i]) &&
      (!cause || (D.own && D.own.cause[i] === cause)) &&
      (column == null || String(D.columns[column][i]) === value) &&
      (!words || `${D.question[i]} ${D.answer[i]}`.toLowerCase().includes(words)));
    if (state.confident) found = found.filter((i) => D.wrong[i]);
    const sort = state.confident ? "sure" : $("sort").value;
    const by = { sure: (i) => u[i], unsure: (i) => -u[i], odd: (i) => -surprise(i), order: (i) => i }[sort];
    return { found: found.sort((a, b) => by(a) - by(b) || a - b), given };
  }

  function bars(i) {
    const list = element("dl");
    for (const [name, values] of Object.entries(D.own.bars)) {
      if (values[i] == null) continue;
      const high = name === "novelty" ? 1 - D.rules[D.method].novelty_level : 0.9;
      const fill = element("i", { style: `width:${Math.round(100 * values[i])}%`, class: values[i] >= high ? "high" : null });
      list.append(element("dt", { text: name }), element("dd", {}, element("div", { class: "bar", "aria-hidden": "true" }, fill)), element("dd", { text: percent(values[i]) }));
    }
    return list;
  }

  function gaussians(i) {
    const o = D.own, normal = (x, m, s) => Math.exp(-0.5 * ((x - m) / s) ** 2) / (s * Math.sqrt(2 * Math.PI));
    const parts = [["prior", o.m0[i], o.sigma0[i]], ["likelihood", o.u_hat[i], o.tau[i]], ["posterior", o.m_post[i], o.sigma_post[i]]].filter(([, , s]) => s > 0 && isFinite(s));
    const low = d3.min(parts, ([, m, s]) => m - 3 * s), high = d3.max(parts, ([, m, s]) => m + 3 * s);
    const points = parts.flatMap(([name, m, s]) => d3.range(0, 121).map((k) => { const x = low + ((high - low) * k) / 120; return { name, x, y: normal(x, m, s) }; }));
    const drawn = Plot.plot({
      width: 280, height: 130, marginLeft: 8, y: { axis: null }, x: { label: "u" }, style: { background: "transparent", color: color("ink") },
      color: { domain: ["prior", "likelihood", "posterior"], range: [color("right"), color("wrong"), color("ink")], legend: true },
      marks: [Plot.line(points, { x: "x", y: "y", z: "name", stroke: "name", strokeWidth: 1.6 }), row() && row().threshold != null ? Plot.ruleX([row().threshold], { stroke: color("dim"), strokeDasharray: "3 3" }) : null].filter(Boolean),
    });
    named([...drawn.querySelectorAll("svg")].at(-1), `Prior, likelihood and posterior: ${parts.map(([name, m, s]) => `${name} mean ${m.toFixed(2)}, sd ${s.toFixed(2)}`).join("; ")}`);
    return drawn;
  }

  function card(i, given) {
    const wrong = Boolean(D.wrong[i]);
    const box = element("article", { class: `query ${wrong ? "wrong" : "right"}`, "data-query": D.id[i] });
    if (D.picture[i]) box.append(element("img", { src: D.picture[i], alt: `picture of query ${D.id[i]}` }));
    box.append(element("h3", { text: D.question[i] || "(no question)" }));
    box.append(element("p", {}, element("span", { class: "said", text: D.answer[i] || "(nothing)" }), " – ", element("span", { class: "verdict-word", text: wrong ? "wrong" : "right" }),
      wrong && D.references[i].length ? `, right is ${D.references[i].slice(0, 3).join(" / ")}` : ""));
    const decided = given ? "answered" : `not answered: ${reasonOf(i, row() && row().threshold)}`;
    box.append(element("p", {}, `P(wrong) ${D.p[state.method][i].toFixed(2)} · u* ${D.compared[state.method].u[i].toFixed(2)} · ${decided}`));
    if (D.own && D.own.why[i]) box.append(element("p", { text: D.own.why[i] }));
    const said = D.samples[i], total = d3.sum(said, ([, count]) => count);
    const list = element("ul", { "aria-label": "sampled answers" });
    said.slice(0, 4).forEach(([text, count]) => list.append(element("li", { text: `${count} of ${total}: ${text || "(nothing)"}` })));
    if (said.length > 4) list.append(element("li", { text: `${said.length - 4} others` }));
    box.append(list);
    if (D.own) {
      box.append(bars(i));
      const more = element("details", {}, element("summary", { text: "Prior, likelihood, posterior" }));
      more.addEventListener("toggle", () => { if (more.open && more.children.length === 1) more.append(gaussians(i)); });
      box.append(more);
    }
    return box;
  }

  function gallery() {
    const { found, given } = chosen(), pages = Math.max(1, Math.ceil(found.length / PAGE));
    state.page = Math.min(state.page, pages - 1);
    const some = found.slice(state.page * PAGE, (state.page + 1) * PAGE);
    $("cards").replaceChildren(...some.map((i) => card(i, given[i])));
    $("count").textContent = `${found.length} of ${D.gallery.length} queries`;
    $("place").textContent = `${state.page + 1} of ${pages}`;
    $("before").disabled = state.page === 0;
    $("next").disabled = state.page >= pages - 1;
  }

  // ------------------------------------------------------------------------------ controls

  function slider() {
    const input = $("risk"), all = rows();
    input.max = Math.max(0, all.length - 1);
    input.disabled = !all.length;
    const wanted = all.findIndex((one) => one.wanted >= D.risk - 1e-9);
    state.at = wanted < 0 ? Math.max(0, all.length - 1) : wanted;
    input.value = state.at;
  }

  function moved() {
    const now = row();
    $("risk-value").textContent = now ? percent(now.wanted) : "–";
    $("risk").setAttribute("aria-valuetext", now ? percent(now.wanted) : "none");
    verdict();
    drawMoved();
    gallery();
  }

  for (const one of D.methods) $("method").append(element("option", { value: one.name, text: one.title }));
  $("method").value = state.method;
  $("method").addEventListener("change", () => { state.method = $("method").value; slider(); moved(); drawAll(); });
  $("risk").addEventListener("input", () => { state.at = Number($("risk").value); moved(); });
  if (D.own) [...new Set(D.own.cause)].filter(Boolean).sort().forEach((cause) => $("cause").append(element("option", { value: cause, text: cause })));
  else $("cause").parentElement.hidden = true;
  for (const [name, values] of Object.entries(D.columns)) {
    for (const value of [...new Set(values)].sort(d3.ascending)) $("slice").append(element("option", { value: JSON.stringify([name, String(value)]), text: `${name} ${value}` }));
  }
  if (!Object.keys(D.columns).length) $("slice").parentElement.hidden = true;
  for (const id of ["show", "decision", "cause", "slice", "words", "sort"]) $(id).addEventListener("input", () => { state.page = 0; gallery(); });
  $("confident").addEventListener("click", () => {
    state.confident = !state.confident;
    state.page = 0;
    $("confident").setAttribute("aria-pressed", String(state.confident));
    gallery();
  });
  $("before").addEventListener("click", () => { state.page -= 1; gallery(); });
  $("next").addEventListener("click", () => { state.page += 1; gallery(); });
  let waiting;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawAll, 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { drawAll(); gallery(); });

  slider();
  drawAll();
  moved();
  document.documentElement.dataset.ready = "yes";
})();
