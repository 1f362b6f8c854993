// What the vendored file exports; Preact's own types come from its package.
import type { VNode } from "preact";

export { Component, createContext, h, render } from "preact";
export {
  useCallback, useContext, useDebugValue, useEffect, useImperativeHandle, useLayoutEffect, useMemo, useReducer, useRef, useState,
} from "preact/hooks";
export const html: (parts: TemplateStringsArray, ...values: unknown[]) => VNode;
