// Addresses: every view is one, `#/batch/ID?where=turns>3&sort=-turns`, so that it can be sent. No key is ever in one.

/** Reads an address into { parts, params }. */
export const readAddress = (hash) => {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const parts = path.split("/").filter(Boolean).map(decoded);
  return { parts, params: Object.fromEntries(new URLSearchParams(query)) };
};

const decoded = (part) => {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
};

/** Makes an address; empty parameters are left out. */
export const address = (parts, params = {}) => {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== "" && value != null));
  return `#/${parts.map(encodeURIComponent).join("/")}${query.size ? `?${query}` : ""}`;
};

/** The address that is shown; a page that carries its answers begins with the one that it names. */
export const here = () => readAddress(location.hash || (document.getElementById("viewer").dataset.start ?? ""));

/** Changes the parameters of this view, without a new entry in the browser's history. */
export const setParams = (changes) => {
  const { parts, params } = here();
  replaceAddress(address(parts, { ...params, ...changes }));
};

/** Goes to another address in the place of this one, so that the browser's way back does not end here again. */
export const replaceAddress = (to) => {
  history.replaceState(null, "", to);
  dispatchEvent(new HashChangeEvent("hashchange"));
};

/** The batch of a rollout's uid. */
export const batchOf = (uid) => uid.replace(/-\d+$/, "");
