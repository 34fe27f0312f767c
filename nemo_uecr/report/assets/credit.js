"use strict";
// The credit map. Everything a run wrote reaches the page through textContent, never as markup.
(() => {
  const block = document.getElementById("credit-data");
  if (!block) return;
  const data = JSON.parse(block.textContent);
  const { shown } = window.uecr;
  const at = { run: 0, step: 0, response: 0, token: -1, view: "both" };
  const part = (name) => document.getElementById(`credit-${name}`);
  const SVG = "http://www.w3.org/2000/svg";

  const VIEWS = {
    both: { name: "Before, after", rows: [["before", "Before redistribution"], ["after", "After redistribution"]] },
    change: { name: "Change", rows: [["change", "Change by redistribution"]] },
    delta: { name: "Gap", rows: [["delta", "Gap δ, teacher over old policy, nats"]] },
    entropy: { name: "Entropy", rows: [["entropy", "Teacher entropy H, nats"]] },
  };

  function element(tag, className, content) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (content !== undefined) node.textContent = content;
    return node;
  }
  const signed = (value) => (value > 0 ? "+" : "") + shown(value);
  const steps = () => data.runs[at.run].steps;
  const step = () => steps()[at.step];
  const response = () => step().responses[at.response];

  function values(one, quantity) {
    if (quantity === "before") return one.before === null ? null : one.after.map(() => one.before);
    return one[quantity];
  }

  // One scale for all responses of a step, so that colours compare: the 98th percentile of the magnitude.
  const reaches = new Map();
  function reach(quantity) {
    const key = `${at.run} ${at.step} ${quantity}`;
    if (!reaches.has(key)) reaches.set(key, measured(quantity));
    return reaches.get(key);
  }
  function measured(quantity) {
    const kinds = quantity === "before" || quantity === "after" ? ["before", "after"] : [quantity];
    const sizes = step().responses.flatMap((one) => kinds.flatMap((kind) => values(one, kind) ?? [])).map(Math.abs).sort((a, b) => a - b);
    return sizes.length ? sizes[Math.floor(0.98 * (sizes.length - 1))] || sizes[sizes.length - 1] || 1 : 1;
  }

  function paint(node, value, limit) {
    node.classList.add(value < 0 ? "down" : "up");
    const strength = Math.min(1, Math.abs(value) / limit);
    node.style.setProperty("--a", `calc(${(strength ** 0.8).toFixed(3)} * var(--deep))`);
  }

  // The part of a token's advantage that redistribution moved, as an underline on its own scale.
  function underline(node, value, limit) {
    const strength = Math.min(1, Math.abs(value) / limit);
    node.classList.add("moved", value < 0 ? "less" : "more");
    node.style.setProperty("--b", (strength ** 0.8).toFixed(3));
  }

  function readable(text) {
    return text.replace(/\n/g, "↵\n").replace(/\t/g, "⇥\t");
  }

  function tokenRow(one, quantity, title, focusable) {
    const list = values(one, quantity);
    if (!list) return [];
    const limit = reach(quantity);
    const moved = quantity === "after" ? values(one, "change") : null;
    const moves = moved !== null;
    const name = element("div", "row-name", title);
    if (!moves) name.append(ramp(limit, quantity === "entropy", ""));
    if (moves) name.append(ramp(reach("change"), false, "underline: change"));
    const row = element("div", "tokens");
    row.setAttribute("role", "group");
    row.setAttribute("aria-label", title);
    one.text.forEach((text, index) => {
      if (one.observed[index]) row.append(element("em", "observed", readable(one.observed[index])));
      const node = element("span", "", readable(text) || "∅");
      paint(node, list[index], limit);
      if (moves) underline(node, moved[index], reach("change"));
      node.dataset.token = index;
      if (focusable) {
        node.tabIndex = index === Math.max(0, at.token) ? 0 : -1;
        node.setAttribute("role", "button");
        node.setAttribute("aria-label", `token ${index + 1}: ${text}, ${title} ${shown(list[index])}`);
      }
      row.append(node);
    });
    return [name, row];
  }

  function ramp(limit, oneSided, label) {
    const node = element("span", oneSided ? "ramp one" : "ramp");
    if (label) node.append(element("em", "", label));
    node.append(element("span", "", oneSided ? "0" : shown(-limit)), element("i", label ? "thin" : ""), element("span", "", oneSided ? shown(limit) : signed(limit)));
    return node;
  }

  function bar(svg, index, from, to, className) {
    const rect = document.createElementNS(SVG, "rect");
    const attributes = { x: index + 0.08, width: 0.84, y: Math.min(from, to), height: Math.max(0.4, Math.abs(to - from)), class: className };
    for (const [key, value] of Object.entries(attributes)) rect.setAttribute(key, value);
    svg.append(rect);
  }

  // A lane of bars under the tokens: from a base (0, or the advantage before) to each token's value.
  function lane(one, quantity, title, base, tall) {
    const list = one[quantity];
    if (!list) return [];
    const low = Math.min(base, ...list), high = Math.max(base, ...list);
    const span = high - low || 1;
    const y = (value) => 4 + (92 * (high - value)) / span;
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${list.length} 100`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `${title}, one bar per token`);
    if (tall) svg.classList.add("tall");
    list.forEach((value, index) => bar(svg, index, y(base), y(value), quantity === "c" ? "lane-one" : value >= base ? "lane-up" : "lane-down"));
    const rule = document.createElementNS(SVG, "line");
    for (const [key, value] of Object.entries({ x1: 0, x2: list.length, y1: y(base), y2: y(base), class: "lane-base" })) rule.setAttribute(key, value);
    svg.append(rule);
    svg.addEventListener("pointerdown", (event) => {
      const frame = svg.getBoundingClientRect();
      choose(Math.min(list.length - 1, Math.floor(((event.clientX - frame.left) / frame.width) * list.length)), false);
    });
    return [element("span", "", title), element("span", "range", `${shown(low)} to ${shown(high)}`), svg];
  }

  function lanes(one) {
    const node = element("div", "lanes");
    node.append(
      ...lane(one, "after", "advantage A", one.change ? one.before : 0, true),
      ...lane(one, "opd", "second surrogate", 0, false),
      ...lane(one, "delta", "gap δ", 0, false),
      ...lane(one, "c", "confidence c", 0, false),
    );
    return node;
  }

  function balance(one) {
    const sums = one.sums;
    if (!sums) return [];
    const node = element("div", "balance");
    const strip = element("div", "bar");
    const widest = Math.max(sums.given, -sums.taken);
    for (const size of [-sums.taken, sums.given]) {
      const half = element("div", "half"), fill = element("i");
      fill.style.width = `${(100 * size) / widest}%`;
      half.append(fill);
      strip.append(half);
    }
    const net = sums.given + sums.taken;
    const zero = step().conserving && Math.abs(net) <= 1e-6 * Math.max(1, one.count);
    const say = element("div");
    say.append("Over the response ", element("b", "", shown(sums.taken)), " removed, ", element("b", "", signed(sums.given)), " added, sum ", element("b", "", shown(net)));
    if (sums.budget !== null && sums.budget !== undefined) say.append("; mean weight 1 ", sums.budget < 0 ? "− " : "+ ", shown(Math.abs(sums.budget)));
    say.append(zero ? ". Credit was moved, not created." : ". This method does not keep the sum at zero.");
    node.append(strip, say);
    return [node];
  }

  function summary(one) {
    const line = element("p", "sum-line");
    const add = (name, value) => {
      if (value === null || value === undefined) return;
      const item = element("span", "", `${name} `);
      item.append(element("b", "", shown(value)));
      line.append(item);
    };
    const { alpha } = step().settings;
    add("verifier reward", one.reward);
    add("teacher reward Rᵀ", one.scalars.teacher_reward);
    add("task advantage", one.scalars.task);
    if (one.scalars.teacher !== null && alpha !== undefined) add("α × teacher advantage", alpha * one.scalars.teacher);
    add(one.change === null ? "advantage" : "advantage before", one.before);
    return line;
  }

  // A token's numbers in a sentence.
  function meaning(one, index) {
    if (one.q === null || one.scalars.task === null) return "";
    if (one.scalars.task === 0) return "Every response of this group got the same reward, so there is no verifier credit to redistribute; only the teacher score trains it.";
    const likes = one.delta[index] > 0 ? "The teacher prefers this token" : one.delta[index] < 0 ? "The teacher likes this token less than the old policy" : "Teacher and old policy agree on this token";
    const sure = one.c[index] > 0.7 ? "and is certain here" : one.c[index] > 0.3 ? "and is fairly certain here" : "but is uncertain here";
    const moved = one.w === null ? 0 : 100 * (one.w[index] - 1);
    const kind = one.scalars.task > 0 ? "credit" : "blame";
    const change = Math.abs(moved) < 0.05 ? `its share of the ${kind} stays as it was` : `its share of the ${kind} ${moved > 0 ? "grows" : "shrinks"} by ${shown(Math.abs(Number(moved.toPrecision(3))))} %`;
    return `${likes} ${sure}: relative to the response's mean, ${change}.`;
  }

  function worked(one, index) {
    const { rho } = step().settings;
    if (one.q === null || rho === undefined || one.scalars.task === null || one.before === null) return "";
    const factor = step().method === "ecr_full_advantage" ? one.before : one.scalars.task;
    const term = (value) => (value < 0 ? `(${shown(value)})` : shown(value));
    return `A = ${shown(one.before)} + ${shown(rho)} · ${term(factor)} · ${term(one.q[index])} = ${shown(one.after[index])}`;
  }

  const FIELDS = [
    ["delta", "gap δ, nats"], ["entropy", "entropy H, nats"], ["c", "confidence c"], ["d", "direction d"],
    ["q", "residual q"], ["w", "weight w"], ["before", "before"], ["after", "after"], ["opd", "second surrogate"],
  ];

  function detail(one, index) {
    const node = element("div", "detail");
    node.setAttribute("aria-live", "polite");
    if (index < 0) {
      node.append(element("p", "note", "Choose a token to see how its advantage is computed."));
      return node;
    }
    const head = element("div", "detail-head");
    head.append(element("code", "", readable(one.text[index]) || "∅"), element("span", "", `token ${index + 1} of ${one.count}`));
    const list = element("dl");
    for (const [field, name] of FIELDS) {
      const of = values(one, field);
      if (!of || (field === "before" && one.change === null)) continue;
      const item = element("div");
      item.append(element("dt", "", field === "after" && one.change === null ? "advantage" : name), element("dd", "", shown(of[index])));
      list.append(item);
    }
    node.append(head, list);
    const sum = worked(one, index), say = meaning(one, index);
    if (sum) node.append(element("p", "worked", sum));
    if (say) node.append(element("p", "", say));
    return node;
  }

  function drawResponse() {
    const one = response();
    const box = part("response");
    box.replaceChildren(element("p", "question", one.question));
    const answer = element("p", "answer", "expected ");
    answer.append(element("b", "", one.answer), "; verdict ", element("b", "", one.verdict), `; group: ${one.kind}`);
    box.append(answer, summary(one));
    const single = one.change === null && at.view === "both";
    const title = one.before === null ? "Advantage" : "Advantage, the same on every token";
    const rows = single ? [["after", title]] : VIEWS[at.view].rows;
    rows.forEach(([quantity, title], index) => box.append(...tokenRow(one, quantity, title, index === rows.length - 1)));
    if (one.opd && at.view === "both") box.append(...tokenRow(one, "opd", "Second surrogate (OPD)", false));
    if (one.text.length < one.count) box.append(element("p", "note", `The first ${one.text.length} of ${one.count} tokens are shown.`));
    box.append(lanes(one), ...balance(one), detail(one, at.token));
    highlight();
  }

  function highlight() {
    const box = part("response");
    box.querySelectorAll(".tokens span").forEach((node) => node.classList.toggle("on", Number(node.dataset.token) === at.token));
    box.querySelectorAll(".lane-on").forEach((node) => node.remove());
    if (at.token < 0) return;
    box.querySelectorAll(".lanes svg").forEach((svg) => {
      bar(svg, at.token, 0, 100, "lane-on");
    });
  }

  function choose(index, focus) {
    at.token = index;
    const box = part("response");
    box.querySelector(".detail").replaceWith(detail(response(), index));
    box.querySelectorAll(".tokens span[role=button]").forEach((node, place) => {
      node.tabIndex = place === index ? 0 : -1;
      if (place === index && focus) node.focus();
    });
    highlight();
  }

  function drawResponses() {
    const list = part("responses");
    list.replaceChildren();
    const limit = reach("after");
    let group = null;
    step().responses.forEach((one, index) => {
      if (one.group !== group) {
        const name = element("div", "group-name", one.kind);
        name.prepend(element("b", "", one.question));
        name.setAttribute("role", "presentation");
        list.append(name);
        group = one.group;
      }
      const item = element("div", `pick-response ${one.reward > 0 ? "right" : "wrong"}`);
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", String(index === at.response));
      item.tabIndex = index === at.response ? 0 : -1;
      const mean = one.before ?? one.after.reduce((sum, value) => sum + value, 0) / one.after.length;
      const swatch = element("span", "swatch tokens-swatch", signed(mean));
      swatch.style.background = `rgb(var(--${mean < 0 ? "neg" : "pos"}) / calc(${Math.min(1, Math.abs(mean) / limit).toFixed(3)} * var(--deep)))`;
      item.append(element("span", "mark-verdict", one.reward > 0 ? "✓" : "✗"), element("span", "", `${one.count} tokens`), swatch);
      item.addEventListener("click", () => pick(index, false));
      list.append(item);
    });
  }

  function pick(index, focus) {
    at.response = Math.min(Math.max(index, 0), step().responses.length - 1);
    at.token = telling(response());
    const items = part("responses").querySelectorAll("[role=option]");
    items.forEach((item, place) => {
      item.setAttribute("aria-selected", String(place === at.response));
      item.tabIndex = place === at.response ? 0 : -1;
    });
    if (focus) {
      items[at.response].focus({ preventScroll: true });
      items[at.response].scrollIntoView({ block: "nearest" });
    }
    drawControls();
    drawResponse();
  }

  function segments(node, names, chosen, choice) {
    node.replaceChildren(...names.map(([value, name]) => {
      const button = element("button", "", name);
      button.type = "button";
      button.setAttribute("aria-pressed", String(value === chosen));
      button.addEventListener("click", () => choice(value));
      return button;
    }));
  }

  // The token whose advantage moved most, so that the map opens on a worked example.
  function telling(one) {
    const list = (values(one, "change") ?? one.after).map(Math.abs);
    return list.indexOf(Math.max(...list));
  }

  function drawControls() {
    segments(part("step"), steps().map((one, index) => [index, String(one.step)]), at.step, (value) => {
      Object.assign(at, { step: value, response: 0, token: -1 });
      draw();
    });
    const one = response();
    const offered = Object.entries(VIEWS).filter(([view]) => view === "both" || values(one, VIEWS[view].rows[0][0]));
    part("view").parentElement.hidden = offered.length < 2;
    if (!offered.some(([view]) => view === at.view)) at.view = "both";
    segments(part("view"), offered.map(([view, { name }]) => [view, view === "both" && one.change === null ? "Advantage" : name]), at.view, (value) => {
      at.view = value;
      drawControls();
      drawResponse();
    });
  }

  function draw() {
    at.token = telling(response());
    drawControls();
    drawResponses();
    drawResponse();
  }

  const runs = part("run");
  data.runs.forEach((run, index) => {
    const option = element("option", "", run.label);
    option.value = index;
    runs.append(option);
  });
  runs.closest("label").hidden = data.runs.length < 2;
  runs.addEventListener("change", () => {
    Object.assign(at, { run: Number(runs.value), step: 0, response: 0, token: -1 });
    draw();
  });
  part("responses").addEventListener("keydown", (event) => {
    const next = { ArrowDown: at.response + 1, ArrowUp: at.response - 1, Home: 0, End: Infinity }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    pick(next, true);
  });
  const box = part("response");
  const tokenOf = (event) => event.target.closest?.("[data-token]");
  box.addEventListener("pointerover", (event) => {
    const node = tokenOf(event);
    if (node && event.pointerType === "mouse") choose(Number(node.dataset.token), false);
  });
  box.addEventListener("click", (event) => {
    const node = tokenOf(event);
    if (node) choose(Number(node.dataset.token), false);
  });
  box.addEventListener("focusin", (event) => {
    const node = tokenOf(event);
    if (node && Number(node.dataset.token) !== at.token) choose(Number(node.dataset.token), false);
  });
  box.addEventListener("keydown", (event) => {
    if (!tokenOf(event)) return;
    const last = response().text.length - 1;
    const next = { ArrowRight: at.token + 1, ArrowLeft: at.token - 1, Home: 0, End: last }[event.key];
    if (next !== undefined) {
      event.preventDefault();
      choose(Math.min(Math.max(next, 0), last), true);
    }
    const turn = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (turn) {
      event.preventDefault();
      pick(at.response + turn, false);
      choose(0, true);
    }
  });
  draw();
})();
