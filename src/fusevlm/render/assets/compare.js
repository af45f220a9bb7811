// Two runs side by side. All numbers are in #data; what is shown is written as text.
"use strict";
(() => {
  const D = JSON.parse(document.getElementById("data").textContent);
  const N = D.question.length, MOST = 200;
  const $ = (id) => document.getElementById(id);
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const COLORS = () => [color("right"), color("wrong")];
  let method = D.methods[0].name;

  function curve(side) {
    const u = D.u[side][method], wrong = D.wrong[side], total = d3.sum(wrong), found = [];
    const sorted = d3.range(N).sort((a, b) => u[a] - u[b] || a - b);
    let seen = 0;
    sorted.forEach((i, k) => {
      seen += wrong[i];
      if (k + 1 < N && u[sorted[k + 1]] === u[i]) return;
      found.push({ run: D.names[side], coverage: (k + 1) / N, risk: seen / (k + 1), fpr: (N - k - 1 - (total - seen)) / (N - total), tpr: (total - seen) / total });
    });
    const step = Math.max(1, Math.floor(found.length / 400));
    return found.filter((_, k) => k % step === 0 || k === found.length - 1);
  }

  const both = () => [...curve(0), ...curve(1)];
  const legend = () => ({ domain: D.names, range: COLORS(), legend: true });
  const CHARTS = {
    roc: () => ({ x: { label: "right answers flagged" }, y: { label: "wrong answers flagged" }, color: legend(), marks: [Plot.line([[0, 0], [1, 1]], { stroke: color("line") }), Plot.line(both(), { x: "fpr", y: "tpr", stroke: "run", strokeWidth: 2 })] }),
    risk: () => ({ x: { label: "share answered" }, y: { label: "share of those that is wrong" }, color: legend(), marks: [Plot.line(both(), { x: "coverage", y: "risk", stroke: "run", strokeWidth: 2 })] }),
    scatter: () => {
      const kind = (i) => (D.wrong[0][i] ? (D.wrong[1][i] ? "both wrong" : `only ${D.names[0]} wrong`) : D.wrong[1][i] ? `only ${D.names[1]} wrong` : "both right");
      const points = d3.range(N).map((i) => ({ one: D.p[0][method][i], two: D.p[1][method][i], kind: kind(i), question: D.question[i] }));
      return {
        x: { label: `P(wrong), ${D.names[0]}`, domain: [0, 1] }, y: { label: `P(wrong), ${D.names[1]}`, domain: [0, 1] },
        color: { domain: ["both right", "both wrong", `only ${D.names[0]} wrong`, `only ${D.names[1]} wrong`], range: [color("right"), color("wrong"), color("bad"), color("good")], legend: true },
        marks: [Plot.line([[0, 0], [1, 1]], { stroke: color("line") }), Plot.dot(points, { x: "one", y: "two", fill: "kind", r: 2.2, fillOpacity: 0.6 }), Plot.tip(points, Plot.pointer({ x: "one", y: "two", title: "question" }))],
      };
    },
  };

  function draw() {
    for (const figure of document.querySelectorAll("figure[data-chart]")) {
      const drawn = Plot.plot({ width: Math.max(280, figure.clientWidth - 20), height: 320, marginLeft: 50, marginBottom: 44, style: { background: "transparent", color: color("ink"), fontSize: "12px" }, ...CHARTS[figure.dataset.chart]() });
      const svg = drawn.tagName === "svg" ? drawn : [...drawn.querySelectorAll("svg")].at(-1);
      svg.querySelectorAll("g").forEach((part) => ["aria-label", "aria-description"].forEach((one) => part.removeAttribute(one)));
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", `${figure.querySelector("figcaption").textContent}: ${D.names.join(" and ")}`);
      figure.replaceChildren(figure.querySelector("figcaption"), drawn);
    }
  }

  function changed() {
    const gap = (i) => D.p[1][method][i] - D.p[0][method][i];
    const found = d3.range(N).filter((i) => D.wrong[0][i] !== D.wrong[1][i]).sort((a, b) => Math.abs(gap(b)) - Math.abs(gap(a)) || a - b);
    $("count").textContent = `${found.length} of ${N} queries are right in one run and wrong in the other${found.length > MOST ? `; the ${MOST} whose P(wrong) differs most are shown` : ""}.`;
    $("changed").replaceChildren(...found.slice(0, MOST).map((i) => {
      const row = document.createElement("tr");
      const cell = (tag, text) => { const made = document.createElement(tag); made.textContent = text; row.append(made); return made; };
      cell("th", D.question[i]).setAttribute("scope", "row");
      for (const side of [0, 1]) {
        cell("td", `${D.answers[side][i] || "(nothing)"} – ${D.wrong[side][i] ? "wrong" : "right"}`);
        cell("td", D.p[side][method][i].toFixed(2));
      }
      return row;
    }));
  }

  for (const one of D.methods) {
    const option = document.createElement("option");
    option.value = one.name;
    option.textContent = one.title;
    $("method").append(option);
  }
  $("method").addEventListener("change", () => { method = $("method").value; draw(); changed(); });
  let waiting;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 150); });
  draw();
  changed();
  document.documentElement.dataset.ready = "yes";
})();
