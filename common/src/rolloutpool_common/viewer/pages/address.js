// Addresses: every view is one, `#/batch/ID?where=turns>3&sort=-turns`, so that it can be sent. No key is ever in one.

/**
 * Reads an address into { parts, params }.
 * @param {string} hash
 * @returns {Place}
 */
export const readAddress = (hash) => {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const parts = path.split("/").filter(Boolean).map(decoded);
  return { parts, params: Object.fromEntries(new URLSearchParams(query)) };
};

/** @param {string} part */
const decoded = (part) => {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
};

/**
 * Whether somebody has typed an API key, into whichever field.
 * @param {unknown} text
 */
export const holdsKey = (text) => /rpk_/.test(String(text));

/**
 * Makes an address; empty parameters are left out, and so is what holds a key.
 * @param {(string | number)[]} parts
 * @param {{ [name: string]: string | number | null | undefined }} params
 */
export const address = (parts, params = {}) => {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) if (value !== "" && value != null && !holdsKey(value)) query.set(name, String(value));
  return `#/${parts.map((part) => encodeURIComponent(part)).join("/")}${query.size ? `?${query}` : ""}`;
};

/** The address that is shown; a page that carries its answers begins with the one that it names. */
export const here = () => readAddress(location.hash || (document.getElementById("viewer")?.dataset.start ?? ""));

/**
 * Changes the parameters of this view, without a new entry in the browser's history.
 * @param {Params} changes
 */
export const setParams = (changes) => {
  const { parts, params } = here();
  replaceAddress(address(parts, { ...params, ...changes }));
};

/**
 * Goes to another address in the place of this one, so that the browser's way back does not end here again.
 * @param {string} to
 */
export const replaceAddress = (to) => {
  history.replaceState(null, "", to);
  dispatchEvent(new HashChangeEvent("hashchange"));
};

/**
 * Goes to another address. Its view is drawn before the next key acts; after `location.hash = …` the browser may hand
 * out keys first, and they would act on the view before it.
 * @param {string} to
 */
export const goTo = (to) => {
  if (to === location.hash) return;
  history.pushState(null, "", to);
  dispatchEvent(new HashChangeEvent("hashchange"));
};

/**
 * The batch of a rollout's uid.
 * @param {string} uid
 */
export const batchOf = (uid) => uid.replace(/-\d+$/, "");
