import assert from "node:assert/strict";
import { test } from "node:test";
import { bytes, clock, count, duration, linear, logarithmic, percent, spread, ticks } from "./scales.js";

const plain = (text) => text.replaceAll("\u00a0", " ");

test("scales put numbers in their places", () => {
  assert.equal(linear(0, 10, 100, 200)(5), 150);
  assert.equal(linear(3, 3, 100, 200)(3), 100);
  assert.equal(logarithmic(1, 100, 0, 10)(10), 5);
  assert.equal(logarithmic(4, 4, 0, 10)(4), 5);
});

test("ticks are round and hold all", () => {
  assert.deepEqual(ticks(0.37, 4).map((one) => one.toFixed(2)), ["0.00", "0.10", "0.20", "0.30", "0.40"]);
  assert.deepEqual(ticks(1, 5, 0.45).map((one) => one.toFixed(1)), ["0.4", "0.6", "0.8", "1.0"]);
  assert.deepEqual(ticks(0, 5), [0, 1]);
});

test("labels are moved apart, in their order, and stay inside", () => {
  assert.deepEqual(spread([10, 11, 50], 10, 0, 100), [10, 20, 50]);
  assert.deepEqual(spread([99, 98, 97], 10, 0, 100), [100, 90, 80]);
  assert.deepEqual(spread([], 10, 0, 100), []);
});

test("numbers are short", () => {
  assert.deepEqual([0, 0.056, 0.284, 0.957, 1].map(percent).map(plain), ["0 %", "5.6 %", "28 %", "95.7 %", "100 %"]);
  assert.deepEqual([0, 999, 64e9, 1.25e9, 999.9e6].map(bytes).map(plain), ["0 B", "999 B", "64 GB", "1.25 GB", "1 GB"]);
  assert.deepEqual([7, 120_344, 2.63e9].map(count).map(plain), ["7", "120 K", "2.63 G"]);
  assert.deepEqual([0.0123, 1.4, 90, 7200, 200_000].map(duration).map(plain), ["12 ms", "1.4 s", "1.5 min", "2.0 h", "2.3 d"]);
  assert.deepEqual(clock(3600), ["minutes", 60]);
});
