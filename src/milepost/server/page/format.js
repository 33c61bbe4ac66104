// Numbers and reasons as people read them. No DOM here.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function count(number) {
  return Math.round(number).toLocaleString("en-US");
}

/** Bytes in powers of 1024, with three digits at most. */
export function bytes(number) {
  let unit = 0;
  while (number >= 1024 && unit < UNITS.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${number >= 100 || unit === 0 ? Math.round(number) : number.toFixed(1)} ${UNITS[unit]}`;
}

export function percent(part, whole) {
  return whole > 0 ? `${Math.round((100 * part) / whole)} %` : "–";
}

export function seconds(number) {
  return number < 1 ? `${Math.round(number * 1000)} ms` : `${number.toFixed(number < 10 ? 2 : 1)} s`;
}

export function rate(perSecond) {
  return perSecond < 100 ? perSecond.toFixed(1) : count(perSecond);
}

export function plural(number, word) {
  return `${count(number)} ${word}${number === 1 ? "" : "s"}`;
}

/** What the `cache` object of an answer says about why no more was reused, in a sentence. */
export function whyNotMore(cache) {
  if (!cache) return "";
  const place = cache.position === null ? "" : count(cache.position);
  switch (cache.reason) {
    case null:
      return "All that was known was reused.";
    case "no prefix":
      return "Nothing known begins like this prompt.";
    case "diverged":
      return `From token ${place} on, the known text goes on otherwise:`;
    case "state thinned":
      return `Keys and values were there, the recurrent state to go on from was not: resumed at token ${place}.`;
    case "evicted":
      return `It was known and had to make room, from token ${place} on.`;
    case "too short":
      return "The prompt is shorter than the first place that can be resumed.";
    case "reading disabled":
      return "Reading the cache is off for this request.";
    case "not finite":
      return `From token ${place} on the model's results are not finite: such rows are never kept.`;
    default:
      return String(cache.reason);
  }
}

/** The parts of a prompt: reused, found but computed again for want of a state, and new. They add up to the prompt. */
export function promptParts(promptTokens, cachedTokens, cache) {
  const resumed = cache ? cache.resumed_tokens : cachedTokens;
  const again = cache ? cache.recomputed_tokens : 0;
  return { resumed, again, fresh: Math.max(0, promptTokens - resumed - again) };
}
