"use strict";
// Untrusted names and texts reach the page only as text, with a maximum length and their own direction.
const MAX_SLOTS = 48, MAX_ROWS = 12, MAX_EVENTS = 50, MAX_TEXT_LENGTH = 400, MAX_NAME_LENGTH = 80;
// The agent sends an event at least every 10 s, and asks a refused client to retry after 5 s.
const SILENCE = 25, GRACE = 1.5, AGAIN = 5, JUMP = 2;

const $ = id => document.getElementById(id);
const seconds = () => performance.now() / 1000;

function clean(text, most = MAX_TEXT_LENGTH) {
  const shown = String(text).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}]/gu, "\ufffd");
  return shown.length > most ? shown.slice(0, most) + "…" : shown;
}
function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children.filter(child => child !== null && child !== ""));
  return element;
}
const theirs = (text, most) => make("bdi", "", clean(text, most));
const number = n => n.toLocaleString("en-GB");
const count = (n, one) => `${number(n)} ${n === 1 ? one : one + "s"}`;
function ordinal(n) {
  const ending = { one: "st", two: "nd", few: "rd" }[new Intl.PluralRules("en-GB", { type: "ordinal" }).select(n)];
  return number(n) + (ending ?? "th");
}
// As `age` in the tables: the two largest units.
function lasting(time) {
  const s = Math.max(0, Math.floor(time)), parts = [[Math.floor(s / 86400), "d"], [Math.floor(s / 3600) % 24, "h"], [Math.floor(s / 60) % 60, "m"], [s % 60, "s"]];
  const first = parts.findIndex(([n]) => n > 0);
  return first < 0 ? "0s" : parts.slice(first, first + 2).filter(([n]) => n > 0).map(([n, unit]) => n + unit).join("");
}
function clock(date) {
  const now = new Date(), year = date.getFullYear() === now.getFullYear() ? undefined : "numeric", time = date.toLocaleTimeString("en-GB");
  return date.toDateString() === now.toDateString() ? time : `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short", year })} ${time}`;
}
function moment(text) {
  const date = new Date(text), element = make("time", "", Number.isNaN(date.getTime()) ? clean(text) : clock(date));
  element.dateTime = text;
  return element;
}
function zone() {
  const { timeZone } = Intl.DateTimeFormat().resolvedOptions(), offset = -new Date().getTimezoneOffset(), minutes = Math.abs(offset) % 60;
  const utc = offset ? `UTC${offset < 0 ? "−" : "+"}${Math.floor(Math.abs(offset) / 60)}${minutes ? `:${String(minutes).padStart(2, "0")}` : ""}` : "UTC";
  return timeZone === utc ? utc : `${timeZone} (${utc})`;
}
// At midnight, or in another time zone, all times are written again.
let written = "";
function dates() {
  const now = `${new Date().toDateString()} ${zone()}`;
  if (now === written) return;
  written = now;
  $("zone").textContent = `Times are in ${zone()}`;
  for (const time of document.querySelectorAll("time")) time.replaceWith(moment(time.dateTime));
}

// Times that advance between two events; `passes` is 1 for a growing time and -1 for a shrinking one.
const running = new Map();
function ticking(card, passes, read, say) {
  const element = make("span");
  running.set(element, () => {
    const told = read(card.told);
    if (told !== null && told !== undefined) element.textContent = say(Math.max(0, told + passes * (seconds() - card.at)));
  });
  return element;
}
const grows = (card, read, say = lasting) => ticking(card, 1, read, say);
const shrinks = (card, read, say = lasting) => ticking(card, -1, read, say);

const STATES = {
  idle: ["Idle", ""], pending: ["Pending", "warn"], starting: ["Starting", ""], waiting: ["Waiting", "warn"], held: ["Held", "good"],
  blocked: ["Blocked", "bad"], leaving: ["Releasing", "warn"], timed_out: ["Timed out", "bad"], lost: ["Lost", "bad"],
  released: ["Released", ""],
};
const CHANGES = {
  ready: "ready", not_ready: "not ready", draining: "draining", session_started: "session", session_ended: "session ended",
  failing: "requests failing", recovered: "recovered", waiting: "waiting", acquired: "acquired", lost: "lost", released: "released",
  blocked: "blocked", timed_out: "timed out", evicted: "evicted", leader_changed: "leader changed", delayed: "lock-delay", limit: "limit", pruned: "pruned",
  lease_expired: "lease expired", removed: "removed from the configuration",
};

function head(card, where, kind) {
  const one = card.told, inspect = command("inspect", where);
  const [button, panel] = details(card, [], `Inspect command of ${clean(where)}`, () => [inspect && copyable("Inspect", inspect, `shows ${clean(where)}`)]);
  const [word, tone] = STATES[one.state] ?? [one.state, ""];
  const more = [kind, one.slots > 1 && `takes ${number(one.slots)} slots`, one.mode === "on_demand" ? "on demand" : !one.required && "optional"].filter(Boolean);
  return [
    make("div", "head", make("h2", "", theirs(one.name)), make("span", "badge " + tone, word)),
    make("div", "line", make("p", "muted", make("code", "", theirs(where)), more.map(word => ` · ${word}`).join("")), ...(inspect ? [button] : [])),
    inspect ? panel : null,
  ];
}
function deferred(one) {
  return one.deferred ? make("p", "note warn", theirs(one.deferred)) : null;
}
function reason(one) {
  if (!one.reason) return null;
  return make("p", "note " + (one.state === "blocked" ? "bad" : "warn"), one.state === "blocked" ? "Blocked: " : "", theirs(one.reason));
}
const slot = (kind, small, text = kind === "dead" ? "✕" : "") => make("span", `slot ${kind} ${small ? "small" : ""}`, text);
// As `Identity::in_words` in the tables.
function words({ name: job, pod, namespace, host, pid } = {}) {
  const place = pod ? (namespace ? `${namespace}/${pod}` : pod) : host ? (pid ? `${host} pid ${pid}` : host) : "";
  return job && place ? `${job} ${pod ? "" : "on "}${place}` : job || place;
}
const short = session => session.length > 13 ? session.slice(0, 8) + "…" : session;
function code(session) {
  const element = make("code", "", theirs(short(session)));
  element.title = clean(session);
  return element;
}
function who(someone) {
  const name = words(someone.who);
  // A holder that acquired since the last read has no identity yet.
  const nameless = someone.who || someone.mine ? "" : someone.health === "dead" ? "dead " : someone.foreign ? "foreign client " : "";
  return make("span", "", name ? theirs(name, MAX_NAME_LENGTH) : nameless, name ? " " : "",
    make("span", "muted", code(someone.session)));
}
// What `words` leaves out. The user of a pod's process says nothing.
function rest_of({ pod, node, command, user } = {}) {
  const said = [["on ", pod && node], ["command ", command], ["user ", !pod && user]].filter(([, name]) => name);
  return said.flatMap(([word, name]) => [" · ", word, theirs(name, MAX_NAME_LENGTH)]);
}
// The end of a row: what is said of a participant, and for how long that has been so.
function end(card, said, read) {
  const parts = said.filter(Boolean).map((text, at, all) => make("span", "", text, at < all.length - 1 ? "," : ""));
  if (read(card.told) != null) parts.push(make("span", "age", "for ", grows(card, read)));
  return make("span", "end muted", ...parts.flatMap(part => [" ", part]).slice(1));
}
// This agent's own time is the entry's, so that a card shows one. With leases, each has its own.
const aged = (list, { session, mine }) => told => mine && told.mode !== "on_demand" ? told.age_seconds
  : list(told).find(one => one.session === session)?.age_seconds;

// A message that a screen reader speaks too.
let messageEnds;
function say(text) {
  $("said").textContent = text;
  clearTimeout(messageEnds);
  messageEnds = setTimeout(() => { $("said").textContent = ""; }, 8000);
}
// The command for a shell; none with a word that is shown otherwise than it is.
function command(verb, ...words) {
  if (words.some(word => !word || clean(word, Infinity) !== word)) return null;
  const quoted = words.map(word => /^[\w./:,@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);
  return ["slotkeeper", verb, ...(words.some(word => word.startsWith("-")) ? ["--"] : []), ...quoted].join(" ");
}
function copyable(verb, text, what) {
  const field = make("textarea"), button = make("button", "", "Copy");
  [field.readOnly, field.rows, field.spellcheck, field.value] = [true, 3, false, text];
  field.setAttribute("aria-label", `The command that ${what}`);
  button.setAttribute("aria-label", `Copy the command that ${what}`);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      say(`Copied: the command that ${what}`);
    } catch {
      // A page from another machine by plain http has no clipboard.
      field.focus();
      field.select();
      say("The command is selected. Copy it with Ctrl+C or ⌘C.");
    }
  });
  return make("div", "command", make("div", "line", make("span", "muted", `${verb} command`), button), field);
}
// A button and the panel that it opens. Both outlive a redraw, with the reader's focus and selection.
function details(card, about, label, draw) {
  const key = JSON.stringify(about);
  if (!card.details.has(key)) {
    const button = make("button", "more"), panel = make("div", "panel", ...draw().filter(Boolean));
    const open = is => { panel.hidden = !is; button.setAttribute("aria-expanded", is); };
    button.title = label;
    button.setAttribute("aria-label", label);
    button.addEventListener("click", () => open(panel.hidden));
    open(false);
    card.details.set(key, [button, panel]);
  }
  return card.details.get(key);
}
function more_of(card, list, someone) {
  const { session, mine, since } = someone, name = clean(words(someone.who), MAX_NAME_LENGTH);
  if (!session) return [];
  const whom = name ? `${name}, session ${clean(short(session))}` : `session ${clean(short(session))}`;
  // The agent cuts and escapes another client's session.
  const evict = mine || /[\\…]/.test(session) ? null : command("evict", card.told.prefix ?? card.told.key, session);
  return details(card, [list, session, mine, since, someone.who], `${evict ? "Evict command" : "Details"} of ${whom}`, () => [
    make("p", "", "Session ", make("code", "", theirs(session))),
    since ? make("p", "muted", list === "Queue" ? "Waits since " : "Holds since ", moment(since), ...rest_of(someone.who)) : null,
    evict ? copyable("Evict", evict, `evicts ${whom}`) : mine ? null : make("p", "muted", "There is no command to copy: the session has control characters, a backslash, or is too long."),
  ]);
}
function rows(title, shown, more) {
  return shown.length ? [make("h3", "", title), make("ul", "rows", ...shown, more ? make("li", "muted", more) : "")] : [];
}
const more = (n, what) => n > 0 && `and ${what ? count(n, `more ${what}`) : `${number(n)} more`}`;
function leases(card, one) {
  return rows("Leases", one.leases.slice(0, MAX_ROWS).map((lease, at) => {
    const mine = told => told.leases[at] ?? {};
    const [button, panel] = more_of(card, lease.state === "waiting" ? "Queue" : "Leases", { ...lease, mine: true });
    return make("li", "", slot(lease.state === "held" ? "mine" : "free", true),
      make("span", "", STATES[lease.state]?.[0] ?? lease.state, lease.slot_indexes.length ? ` · ${numbered(lease.slot_indexes)}` : "", " ",
        make("span", "muted", code(lease.session ?? ""))),
      make("span", "end muted", lease.state === "waiting" ? grows(card, told => mine(told).age_seconds)
        : lease.expires_in_seconds !== null ? shrinks(card, told => mine(told).expires_in_seconds, left => lasting(left) + " left") : ""), button ?? "", panel ?? "");
  }), more(one.leases.length - MAX_ROWS));
}

const kindOf = holder => holder.mine ? "mine" : holder.health === "dead" ? "dead" : "others";
const numbersOf = one => [...one.slot_indexes, ...one.leases.flatMap(lease => lease.slot_indexes)];
const numbered = numbers => `slot${numbers.length > 1 ? "s" : ""} ${numbers.slice(0, 8).join(", ")}${numbers.length > 8 ? ", …" : ""}`;
function slots(one) {
  const total = kind => one.holders.filter(holder => kindOf(holder) === kind).reduce((sum, holder) => sum + holder.slots, 0);
  const mine = total("mine"), dead = total("dead"), numbers = numbersOf(one);
  // The list of holders is cut.
  const others = Math.max(0, one.slots_taken - mine - dead), free = Math.max(0, one.limit - one.slots_taken);
  const over = Math.max(0, one.slots_taken - one.limit);
  const line = make("div", "slots");
  let shown = 0;
  // A part of many slots is drawn, in the order of interest.
  for (const [kind, n] of [["mine", mine], ["dead", dead], ["others", others], ["free", free]]) {
    for (let i = 0; i < n && shown < MAX_SLOTS; i++, shown++) {
      const box = kind === "mine" ? slot(kind, false, String(numbers[i] ?? "me")) : slot(kind);
      box.classList.toggle("over", shown >= one.limit);
      line.append(box);
    }
  }
  const rest = mine + others + dead + free - shown;
  if (rest > 0) line.append(make("span", "muted", `+ ${number(rest)} more`));
  const said = [mine && `${number(mine)} mine`, dead && `${number(dead)} dead`, others && `${number(others)} of others`, `${number(free)} free`];
  const words = `${number(one.slots_taken)} of ${count(one.limit, "slot")} taken: ${said.filter(Boolean).join(", ")}`;
  line.setAttribute("role", "img");
  line.setAttribute("aria-label", words + (mine && numbers.length ? `; mine: ${numbered(numbers)}` : ""));
  return [line, make("p", "muted", words, over ? `; ${number(over)} over the limit` : "")];
}
function holders(card) {
  const one = card.told, order = { mine: 0, dead: 1, others: 2 };
  const shown = [...one.holders].sort((a, b) => order[kindOf(a)] - order[kindOf(b)]).slice(0, MAX_ROWS);
  const rest = one.slots_taken - shown.reduce((sum, holder) => sum + holder.slots, 0);
  return rows("Holders", shown.map(holder => {
    const kind = kindOf(holder), said = [holder.mine && "this agent", holder.slots > 1 && count(holder.slots, "slot"), kind === "dead" && "dead"];
    // Since when it is dead is not known.
    const age = kind === "dead" ? () => null : aged(told => told.holders, holder);
    return make("li", "", slot(kind, true), who(holder), end(card, said, age), ...more_of(card, "Holders", holder));
  }), more(rest, "slot"));
}
// The head of the queue. If this agent is further back, fewer of them, and its known neighbours.
function queue(card) {
  const one = card.told;
  const place = one.position ?? 0, far = place > MAX_ROWS;
  const known = one.queue.map(waiter => ({ ...waiter, place: waiter.position }));
  if (place > known.length) known.push({ session: session?.told.id ?? "", slots: one.slots, mine: true, place });
  const shown = [];
  let last = 0;
  for (const waiter of known) {
    if (waiter.place > (far ? MAX_ROWS - 4 : MAX_ROWS) && !(far && Math.abs(waiter.place - place) <= 1)) continue;
    if (waiter.place > last + 1) shown.push(make("li", "muted", `… ${number(waiter.place - last - 1)} more`));
    last = waiter.place;
    const said = [waiter.mine && "this agent", waiter.slots !== 1 && count(waiter.slots, "slot")];
    shown.push(make("li", "", make("span", "place muted", number(waiter.place)), who(waiter),
      end(card, said, aged(told => told.queue, waiter)), ...more_of(card, "Queue", waiter)));
  }
  return rows("Queue", shown, more(one.queue_length - last));
}

function semaphore(card) {
  const one = card.told;
  const parts = [...head(card, one.prefix)];
  // Without a valid record, the slots are unknown.
  if (one.limit !== null) parts.push(...slots(one));
  if (one.limit !== null && one.limit !== one.configured_limit) {
    parts.push(make("p", "muted", `The stored limit is ${number(one.limit)}; ${number(one.configured_limit)} is configured.`));
  }
  if (one.state === "held" && one.since) {
    const numbers = one.slot_indexes.length ? ` · ${numbered(one.slot_indexes)}` : "";
    parts.push(make("p", "where", make("strong", "", "Held for ", grows(card, told => told.age_seconds)), make("span", "muted", numbers, ` · fencing token ${one.fencing_token}`)));
  } else if (one.state === "waiting" && one.position !== null) {
    parts.push(make("p", "where", make("strong", "", `${ordinal(one.position)} of ${number(one.queue_length)} in the queue`),
      ", waiting for ", grows(card, told => told.age_seconds)));
  } else if (one.age_seconds !== null) {
    parts.push(make("p", "where", "Waiting for ", grows(card, told => told.age_seconds)));
  }
  if (one.queue_length && one.position === null) parts.push(make("p", "muted", `${number(one.queue_length)} in the queue`));
  parts.push(reason(one), deferred(one), ...holders(card), ...queue(card), ...leases(card, one));
  if (one.seen_seconds_ago !== null) parts.push(make("p", "muted where", "Seen ", grows(card, told => told.seen_seconds_ago), " ago"));
  return parts;
}

function lock(card) {
  const one = card.told, parts = [...head(card, one.key, "lock")];
  const kind = one.leader ? (one.leader.mine ? "mine" : "others") : "free";
  const row = one.leader ? [who(one.leader), end(card, [one.leader.mine ? "this agent leads" : "leads"], aged(told => [told.leader].filter(Boolean), one.leader)),
    ...more_of(card, "Leader", one.leader)] : [make("span", "", one.seen_seconds_ago === null ? "Not read yet" : "Free")];
  parts.push(make("ul", "rows where", make("li", "", slot(kind, true), ...row)));
  if (one.state === "held" && one.since) {
    parts.push(make("p", "where", make("strong", "", "Held for ", grows(card, told => told.age_seconds)), make("span", "muted", ` · fencing token ${one.fencing_token}`)));
  } else if (one.age_seconds !== null) {
    parts.push(make("p", "where", "Waiting for ", grows(card, told => told.age_seconds)));
  }
  parts.push(reason(one), deferred(one), ...leases(card, one));
  return parts;
}

// Redraw a card only if more than a time has changed, so that a selection stays.
const cards = new Map();
const steady = one => JSON.stringify(one, (key, value) => typeof value === "number" && /_seconds(_ago)?$/.test(key) ? 0 : value);
function show(status) {
  const wanted = [...status.semaphores.map(one => ["semaphore", one, semaphore]), ...status.locks.map(one => ["lock", one, lock])];
  const place_of = (kind, one) => `${kind} ${one.prefix ?? one.key}`;
  const keep = new Set(wanted.map(([kind, one]) => place_of(kind, one)));
  for (const [key, card] of cards) if (!keep.has(key)) { card.element.remove(); cards.delete(key); }
  wanted.forEach(([kind, one, draw], place) => {
    const key = place_of(kind, one);
    const card = cards.get(key) ?? { element: make("article"), said: "", details: new Map() };
    cards.set(key, card);
    card.at = seconds();
    card.told = one;
    if (card.said !== steady(one)) {
      card.said = steady(one);
      const focused = card.element.contains(document.activeElement) ? document.activeElement : null;
      card.element.replaceChildren(...draw(card).filter(Boolean));
      for (const [about, [button]] of card.details) if (!card.element.contains(button)) card.details.delete(about);
      focused?.focus({ preventScroll: true });
    }
    if ($("cards").children[place] !== card.element) $("cards").insertBefore(card.element, $("cards").children[place] ?? null);
  });
  for (const element of running.keys()) if (!element.isConnected) running.delete(element);
}

// The longest lease is nine tenths of the TTL. It is renewed each sixth of the TTL, so below half of it renewals fail.
let agent = null, session = null, late = false;
const full = () => 0.9 * session.told.ttl_seconds;
const left = () => Math.max(0, session.told.expires_in_seconds - (seconds() - session.at));
function headline() {
  const word = agent.ready ? "Ready" : agent.state === "draining" ? "Draining" : agent.state === "starting" ? "Starting" : "Not ready";
  const past = gone ?? away;
  const text = past ? `${word} when last seen` : agent.ready && late ? "Ready, but Consul does not answer: the slots are lost when the lease expires" : word;
  if ($("headline").textContent !== text) $("headline").textContent = text;
  const failed = agent.checks.filter(check => !check.passed && check.name !== "agent").map(check => clean(`${check.name}: ${check.detail}`));
  const said = failed.length ? failed : agent.ready && !past ? ["Everything required is held."] : [];
  if ($("checks").textContent !== said.join("")) $("checks").replaceChildren(...said.slice(0, MAX_ROWS).map(line => make("li", "muted", make("bdi", "", line))));
  const name = clean(words(agent.who), MAX_NAME_LENGTH);
  document.title = [gone ? "gone" : away ? `${word} at ${clock(away)}` : word, name, "slotkeeper"].filter(Boolean).join(" · ");
}
function identify({ who, version, started_at }) {
  $("agent").replaceChildren(make("b", "", theirs(words(who) || "slotkeeper", MAX_NAME_LENGTH)), ...rest_of(who));
  $("version").replaceChildren(` · slotkeeper ${version}, running since `, moment(started_at));
}
function tell(status) {
  if (agent?.started_at !== status.agent.started_at || JSON.stringify(agent.who) !== JSON.stringify(status.agent.who)) identify(status.agent);
  agent = status.agent;
  session = status.session && { told: status.session, at: seconds() };
  $("lease").hidden = !session;
  show(status);
  headline();
  tick();
}
function tick() {
  if (gone || away) return;
  for (const say of running.values()) say();
  if (!session) return;
  const text = left() > 0 ? `Lease: ${lasting(left())} left` : "The lease has expired";
  if (late !== left() < full() / 2) {
    late = !late;
    headline();
  }
  if ($("left").firstChild?.textContent !== text || !$("left").dataset.session) {
    $("left").replaceChildren(text, " · session ", theirs(session.told.name), " ", make("code", "", theirs(session.told.id)));
    $("left").dataset.session = session.told.id;
  }
  $("bar").firstElementChild.style.transform = `scaleX(${Math.min(1, left() / full())})`;
  $("bar").classList.toggle("low", late);
}

const seen = new Set();
function happened(id, { at, event, name, detail }) {
  if (seen.has(id)) return;
  if (!seen.size) $("events").replaceChildren();
  seen.add(id);
  // For as long as the agent may send it again.
  if (seen.size > 2 * MAX_EVENTS) seen.delete(seen.values().next().value);
  $("events").prepend(make("li", "", moment(at), make("span", "", name ? theirs(name) : "agent"),
    make("span", "", CHANGES[event] ?? clean(event).replaceAll("_", " "), detail ? make("span", "muted", " · ", theirs(detail)) : "")));
  while ($("events").children.length > MAX_EVENTS) $("events").lastElementChild.remove();
}

// The connection. EventSource reconnects by itself, except after a response that is no stream, and after silence.
// `gone`: since when there is no connection. `away`: since when the page is hidden and its content is not updated.
let source = null, heard, tried, lost = null, gone = null, away = null;
function alive() {
  heard = seconds();
  lost = null;
  if (!gone && !away) return;
  gone = away = null;
  $("gone").hidden = true;
  document.body.classList.remove("gone");
  if (agent) headline();
}
function connect() {
  source?.close();
  source = new EventSource("v1/events");
  tried = seconds();
  source.addEventListener("status", event => { alive(); tell(JSON.parse(event.data)); });
  // The next event is the status.
  source.addEventListener("change", event => happened(event.lastEventId, JSON.parse(event.data)));
  source.addEventListener("alive", alive);
  source.addEventListener("error", () => { lost ??= seconds(); });
}
// A browser has six connections per address, and an agent accepts 32 followers: a hidden page uses none.
function follow() {
  away ??= new Date();
  [heard, lost] = [seconds(), null];
  if (agent) headline();
  if (!document.hidden) return connect();
  source?.close();
  source = null;
}
// The page's clock may stop while the machine sleeps, unlike the wall clock.
const apart = () => Date.now() / 1000 - seconds();
let before = apart();
function mind() {
  const now = seconds(), jumped = Math.abs(apart() - before) > JUMP;
  before = apart();
  if (!source) return;
  if (jumped) follow();
  if (now - heard > SILENCE) lost ??= now;
  if (lost !== null && now - tried > (source.readyState === EventSource.CLOSED ? AGAIN : SILENCE)) connect();
  if (lost !== null && now - lost > GRACE && !gone) {
    gone = away ?? new Date();
    document.body.classList.add("gone");
    const ended = agent?.state === "draining" ? "The agent has ended: it was draining." : "The connection to the agent is gone";
    const what = agent ? `${ended.endsWith(".") ? ended : `${ended} since ${clock(gone)}.`} Below is its last status; retrying.`
      : "The agent does not respond, or has reached its limit of followers. Retrying.";
    $("gone").textContent = what;
    $("gone").hidden = false;
    if (agent) headline();
    else $("headline").textContent = "Not connected";
  }
}
$("host").textContent = `slotkeeper at ${location.host}`;
$("headline").textContent = "Connecting…";
document.addEventListener("visibilitychange", follow);
follow();
dates();
setInterval(() => { mind(); tick(); dates(); }, 1000);
