// Types of the viewer's modules, for `make test-viewer`. What the API answers is taken from its OpenAPI document, which
// the target writes to build/viewer/api.d.ts: so a module that reads a field that no answer has is an error.
import type { ComponentChildren, VNode } from "preact";
import type { components } from "../../../build/viewer/api";

type Schemas = components["schemas"];
/** An answer has all fields, also those with a default. */
type Whole<T> = T extends string | number | boolean | null | undefined ? T
  : T extends readonly (infer E)[] ? Whole<E>[]
  : T extends object ? { [K in keyof T]-?: Whole<Exclude<T[K], undefined>> }
  : T;

declare global {
  type Batch = Whole<Schemas["BatchStatus"]>;
  type BatchLine = Whole<Schemas["BatchSummary"]>;
  type BatchList = Whole<Schemas["BatchList"]>;
  type PoolOverview = Whole<Schemas["PoolOverview"]>;
  type RolloutHistory = Whole<Schemas["RolloutHistory"]>;
  type Annotations = Whole<Schemas["RolloutAnnotations"]>;
  type Pieces = Whole<Schemas["TokenPieces"]>;
  type HarnessReport = Whole<Schemas["HarnessReport"]>;
  type HarnessLine = HarnessReport["lines"][number];
  type Result = Whole<Schemas["RolloutResult"]> & { messages: (Schemas["Message"] & { reasoning_content?: string | null })[] };
  type Message = Result["messages"][number];
  type Sample = Whole<Schemas["Sample"]>;
  type Turn = Result["turns"][number];
  type WaitingEntry = Whole<Schemas["Waiting"]>;
  type RolloutView = Omit<Whole<Schemas["RolloutView"]>, "result"> & { result: Result | null };
  /** Fields of rows that modules name; the same as `ROW_FIELDS`. A page has those that it was asked for. */
  interface RowColumns {
    uid: string[];
    group: (string | null)[];
    ended_ms: (number | null)[];
    claimed_ms: (number | null)[];
    status: string[];
    rollout_id: string[];
    finish_reason: (string | null)[];
    category: (string | null)[];
    message: (string | null)[];
    drift: (string[] | null)[];
    turns: (number | null)[];
    tool_calls: (number | null)[];
    tool_errors: (number | null)[];
    sampled_tokens: (number | null)[];
    queued_ms: (number | null)[];
    tokenizer_ms: (number | null)[];
    llm_ms: (number | null)[];
    tools_ms: (number | null)[];
    loop_ms: (number | null)[];
    redis_ms: (number | null)[];
    total_ms: (number | null)[];
    worker: (string | null)[];
    reward: (number | null)[];
    policy_versions: (string[] | null)[];
  }
  type Columns = { index: number[] } & Partial<RowColumns>;
  type RowPage = Omit<Whole<Schemas["RowPage"]>, "columns"> & { columns: Columns };
  type Cell = string | number | string[] | number[] | null | undefined;

  /** The parameters of an address. */
  type Params = { [name: string]: string | undefined };
  interface Place { parts: string[]; params: Params }
  /** Something that went wrong, for people. */
  interface Fault { message: string; status?: number }
  /** What `useAnswer` returns. */
  interface Asked<T> { data: T | null; error: Fault | null; again: () => void }

  /** A stretch of a sample's tokens with one origin. */
  interface Run { kind: string; start: number; n: number; trained: boolean; turn?: number; policy?: string | null }
  /** Gives an id's text, the bytes of a part of a character, or null. */
  type Reader = (id: number) => string | Uint8Array | null;
  /** The ids of a sample. */
  type Ids = Pick<Sample, "prompt_ids" | "response_ids">;
  interface TokenFacts { place: number; run: Run; trained: boolean; id: number; logprob: number | null; response: number }
  type Inspected = TokenFacts & { sample: number; text: string };
  interface Scale { low: number; high: number; zero: boolean }
  type Streams = { [name: string]: ((number | null)[])[] };
  interface Fork { sample: number; turn: number | null; position: number; before: number[]; expected: number[]; echoed: number[]; kept: number }
  interface Found { at: number; turn: number | null; position: number; before: number[]; expected: number[]; echoed: number[]; fork: Fork | null }
  /** A part of a lane, in ms. */
  interface LanePart { kind: string; from: number; to: number }
  /** Columns of a batch with what its lanes need. */
  type LaneColumns = Columns & { start_ms: (number | null)[]; end_ms: (number | null)[]; other_ms: (number | null)[]; longest: (string | null)[]; parts: LanePart[][] };
  interface GroupColumns {
    index: number[]; group: string[]; size: number[]; ended: number[]; not_completed: number[]; annotated: number[];
    mean: (number | null)[]; deviation: (number | null)[]; min: (number | null)[]; max: (number | null)[];
    zero_spread: string[]; sampled_tokens: (number | null)[]; values: number[][];
  }
  interface Sought { q: string; matchCase: boolean; batch: string | undefined }
  /** Where a text was found: in a message, or in the tokens of a sample. */
  interface TextMatch {
    uid: string; rollout_id: string; index: number; kind: string; before: string; found: string; after: string;
    message: number | null; role: string | null; number: number | null; sample: number | null; place: number | null; turn: number | null;
  }
  /** What `/search` of `rolloutpool view FILE` answers. */
  interface SearchPage { matches: TextMatch[]; searched: number; total: number; next_cursor: string | null; cut: number; unread: number }
  interface GridColumn { name: string; title: string; width: string; number?: boolean; show: (place: number) => ComponentChildren }
  type Keys = { [key: string]: (event: KeyboardEvent) => void };
  type Shown = VNode | string | number | boolean | null | undefined;
}
