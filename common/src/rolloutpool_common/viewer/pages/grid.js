// A table of any length, of which only the rows in view are in the document. All rows have one height.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/htm_preact.js";
import { useKeys } from "./parts.js";

const ROW = 27;
const HEAD = 30;
const MORE = 8; // Rows above and below the view, so that a quick scroll meets rows.

// A figure is first shown with the largest on top, a text from A; the next click turns the order around.
/**
 * @param {string} sort
 * @param {string} name
 * @param {boolean} [number]
 */
const nextSort = (sort, name, number) => {
  if (sort.replace(/^-/, "") !== name) return number ? `-${name}` : name;
  return sort.startsWith("-") ? name : `-${name}`;
};

/**
 * columns: [{ name, title, width, number, show(place) }]; order: places of the data; sort: a field, `-` in front for
 * the largest first; selected: a position in `order`; marked(place): whether a row is set apart.
 * @param {{ label: string, columns: GridColumn[], order: number[], sort: string, onSort: (sort: string) => void,
 * selected: number, onSelect: (at: number) => void, onOpen: (place: number) => void, marked?: (place: number) => boolean }} props
 */
export const Grid = ({ label, columns, order, sort, onSort, selected, onSelect, onOpen, marked }) => {
  const body = useRef(/** @type {HTMLElement | null} */ (null));
  const [view, setView] = useState({ first: 0, count: 40 });
  const look = () => {
    if (!body.current) return;
    const { scrollTop, clientHeight } = body.current;
    const first = Math.max(0, Math.floor(scrollTop / ROW) - MORE);
    const count = Math.ceil(clientHeight / ROW) + 2 * MORE;
    setView((before) => (before.first === first && before.count === count ? before : { first, count }));
  };
  useLayoutEffect(look, []);
  useEffect(() => {
    addEventListener("resize", look);
    return () => removeEventListener("resize", look);
  }, []);
  useLayoutEffect(() => {
    if (!body.current) return;
    const { scrollTop, clientHeight } = body.current;
    const top = selected * ROW;
    const space = clientHeight - HEAD;
    if (selected < 0) return;
    if (top < scrollTop) body.current.scrollTop = top;
    else if (top + ROW > scrollTop + space) body.current.scrollTop = top + ROW - space;
  }, [selected]);

  // A key may come before the render that the key before it caused, so keys go by this and not by `selected`.
  const chosen = useRef(selected);
  useLayoutEffect(() => {
    chosen.current = selected;
  }, [selected]);
  /** @param {number} by */
  const step = (by) => {
    if (!order.length) return;
    chosen.current = Math.min(Math.max(chosen.current + by, 0), order.length - 1);
    onSelect(chosen.current);
  };
  const page = () => Math.max(1, Math.floor(((body.current?.clientHeight ?? 0) - HEAD) / ROW) - 1);
  /** @type {{ [key: string]: () => void }} */
  const keys = {
    j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1),
    PageDown: () => step(page()), PageUp: () => step(-page()), Home: () => step(-Infinity), End: () => step(Infinity),
    Enter: () => {
      if (chosen.current >= 0) onOpen(order[chosen.current]);
    },
  };
  const { j, k, Enter } = keys;
  useKeys({ j, k, Enter });
  /** @param {KeyboardEvent} event */
  const onKey = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
    if (event.target !== body.current) return;
    event.preventDefault();
    event.stopPropagation();
    keys[event.key]();
  };

  const head = columns.map(({ name, title, number }) => {
    const down = sort === `-${name}`;
    const sorted = down || sort === name;
    return html`<div class=${number ? "cell number" : "cell"} role="columnheader" key=${name}
      aria-sort=${sorted ? (down ? "descending" : "ascending") : "none"}>
      <button type="button" onClick=${() => onSort(nextSort(sort, name, number))}>
        ${title}${sorted ? (down ? " ▼" : " ▲") : ""}</button></div>`;
  });
  // A row keeps its elements when another rollout comes into its place: to sort changes texts, and makes no elements.
  const rows = [];
  for (let at = view.first; at < Math.min(view.first + view.count, order.length); at++) {
    const place = order[at];
    rows.push(html`<div class=${marked?.(place) ? "row marked" : "row"} role="row" key=${at} id="row-${at}" aria-rowindex=${at + 2}
      aria-selected=${at === selected ? "true" : "false"} style=${{ transform: `translateY(${at * ROW}px)` }}
      onClick=${() => onOpen(place)}>
      ${columns.map(({ name, number, show }) => html`<div role="gridcell" key=${name} class=${number ? "cell number" : "cell"}>${show(place)}</div>`)}
    </div>`);
  }
  return html`<div class="grid" role="grid" aria-label="${label}: j and k choose one, Enter opens it" aria-rowcount=${order.length + 1}
    ref=${body} tabindex="0" onScroll=${look} onKeyDown=${onKey} aria-activedescendant=${selected >= 0 ? `row-${selected}` : undefined}
    style=${{ "--columns": columns.map(({ width }) => width).join(" ") }}>
    <div class="head" role="rowgroup"><div class="row" role="row" aria-rowindex="1">${head}</div></div>
    <div class="all" role="rowgroup" style=${{ height: `${order.length * ROW}px` }}>${rows}</div>
  </div>`;
};
