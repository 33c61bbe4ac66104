// The parts of training that torch does slowly on a CPU: a short convolution with silu, the gated delta rule token by
// token, and the gated norm after it, each with its gradient. All arrays are fp32 and contiguous; time runs within a row of the batch.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define TAPS 4
#define DIM 64  // of keys and values
#define KEEP 16 // tokens between two kept states

// No further than -80: what follows an overflow is not defined under -ffast-math.
static inline float sigmoid(float x) { return 1.0f / (1.0f + expf(x < -80.0f ? 80.0f : -x)); }

// What the convolution gives before silu, of one token: x points to it, `t` is its place in the row.
static void before_silu(const float *restrict x, const float *restrict w, float *restrict out, int64_t t, int64_t width) {
  for (int64_t c = 0; c < width; c++) out[c] = w[(TAPS - 1) * width + c] * x[c];
  for (int64_t j = 1; j < TAPS && j <= t; j++) {
    const float *past = x - j * width, *tap = w + (TAPS - 1 - j) * width;
    for (int64_t c = 0; c < width; c++) out[c] += tap[c] * past[c];
  }
}

// x, y [rows, tokens, width], w [TAPS, width].
void conv_silu(const float *restrict x, const float *restrict w, float *restrict y, int64_t rows, int64_t tokens,
               int64_t width) {
  for (int64_t i = 0; i < rows * tokens; i++) {
    float *out = y + i * width;
    before_silu(x + i * width, w, out, i % tokens, width);
    for (int64_t c = 0; c < width; c++) out[c] = out[c] * sigmoid(out[c]);
  }
}

// dy [rows, tokens, width]; adds to dx [rows, tokens, width] and dw [TAPS, width], which begin at 0.
void conv_silu_gradient(const float *restrict x, const float *restrict w, const float *restrict dy, float *restrict dx,
                        float *restrict dw, int64_t rows, int64_t tokens, int64_t width) {
  float *restrict d = malloc(width * sizeof(float));
  for (int64_t i = 0; i < rows * tokens; i++) {
    const float *grad = dy + i * width;
    before_silu(x + i * width, w, d, i % tokens, width);
    for (int64_t c = 0; c < width; c++) {
      float s = sigmoid(d[c]);
      d[c] = grad[c] * s * (1.0f + d[c] * (1.0f - s));
    }
    for (int64_t j = 0; j < TAPS && j <= i % tokens; j++) {
      const float *past = x + (i - j) * width, *tap = w + (TAPS - 1 - j) * width;
      float *past_grad = dx + (i - j) * width, *tap_grad = dw + (TAPS - 1 - j) * width;
      for (int64_t c = 0; c < width; c++) {
        past_grad[c] += tap[c] * d[c];
        tap_grad[c] += past[c] * d[c];
      }
    }
  }
  free(d);
}

static inline float dot(const float *restrict a, const float *restrict b) {
  float sum = 0;
  for (int c = 0; c < DIM; c++) sum += a[c] * b[c];
  return sum;
}

// x / rms(x) * weight * silu(gate), for every DIM numbers; x, gate, y [rows, DIM], weight [DIM].
void gated_norm(const float *restrict x, const float *restrict gate, const float *restrict weight, float *restrict y,
                int64_t rows, float eps) {
  for (int64_t i = 0; i < rows * DIM; i += DIM) {
    const float r = 1.0f / sqrtf(dot(x + i, x + i) / DIM + eps);
    for (int c = 0; c < DIM; c++) y[i + c] = x[i + c] * r * weight[c] * gate[i + c] * sigmoid(gate[i + c]);
  }
}

// Fills dx and dgate; adds to dweight, which begins at 0.
void gated_norm_gradient(const float *restrict x, const float *restrict gate, const float *restrict weight,
                         const float *restrict dy, float *restrict dx, float *restrict dgate, float *restrict dweight,
                         int64_t rows, float eps) {
  for (int64_t i = 0; i < rows * DIM; i += DIM) {
    const float r = 1.0f / sqrtf(dot(x + i, x + i) / DIM + eps);
    float d[DIM], along = 0;
    for (int c = 0; c < DIM; c++) {
      const float z = gate[i + c], s = sigmoid(z), unit = x[i + c] * r, grad = dy[i + c];
      dgate[i + c] = grad * unit * weight[c] * s * (1.0f + z * (1.0f - s));
      dweight[c] += grad * unit * z * s;
      d[c] = grad * weight[c] * z * s;
      along += d[c] * unit;
    }
    for (int c = 0; c < DIM; c++) dx[i + c] = r * (d[c] - x[i + c] * r * along / DIM);
  }
}

// x / |x| * scale; returns scale / |x|.
static inline float to_unit(const float *restrict x, float *restrict out, float scale) {
  float r = scale / sqrtf(dot(x, x) + 1e-6f);
  for (int c = 0; c < DIM; c++) out[c] = x[c] * r;
  return r;
}

static inline void to_unit_gradient(const float *restrict unit, const float *restrict d, float *restrict dx, float r,
                                    float scale) {
  float along = dot(unit, d) / (scale * scale);
  for (int c = 0; c < DIM; c++) dx[c] = r * (d[c] - unit[c] * along);
}

// S = a S + k u', u = beta (v - a S' k).
static inline void write_state(float (*restrict S)[DIM], const float *restrict k, const float *restrict v, float a,
                               float beta, float *restrict u) {
  float read[DIM] = {0};
  for (int i = 0; i < DIM; i++)
    for (int c = 0; c < DIM; c++) read[c] += k[i] * S[i][c];
  for (int c = 0; c < DIM; c++) u[c] = beta * (v[c] - a * read[c]);
  for (int i = 0; i < DIM; i++)
    for (int c = 0; c < DIM; c++) S[i][c] = a * S[i][c] + k[i] * u[c];
}

// mixed [rows, tokens, 3, heads, DIM]: q, k, v before they are made unit; g, beta [rows, tokens, heads]; out
// [rows, tokens, heads, DIM]; kept [rows, heads, ceil(tokens / KEEP), DIM, DIM]: the states before every KEEP-th token.
void delta(const float *mixed, const float *g, const float *beta, float *out, float *kept, int64_t rows, int64_t tokens,
           int64_t heads) {
  const int64_t pieces = (tokens + KEEP - 1) / KEEP;
  const float scale = 1.0f / sqrtf(DIM);
  float S[DIM][DIM] __attribute__((aligned(64)));
  for (int64_t n = 0; n < rows * heads; n++) {
    const int64_t row = n / heads, head = n % heads;
    memset(S, 0, sizeof S);
    for (int64_t t = 0; t < tokens; t++) {
      if (t % KEEP == 0) memcpy(kept + (n * pieces + t / KEEP) * DIM * DIM, S, sizeof S);
      const int64_t at = row * tokens + t;
      const float *in = mixed + (at * 3 * heads + head) * DIM;
      float q[DIM], k[DIM], u[DIM], read[DIM] = {0};
      to_unit(in, q, scale);
      to_unit(in + heads * DIM, k, 1);
      write_state(S, k, in + 2 * heads * DIM, expf(g[at * heads + head]), beta[at * heads + head], u);
      for (int i = 0; i < DIM; i++)
        for (int c = 0; c < DIM; c++) read[c] += q[i] * S[i][c];
      memcpy(out + (at * heads + head) * DIM, read, sizeof read);
    }
  }
}

// dout as out; fills dmixed as mixed, dg and dbeta.
void delta_gradient(const float *mixed, const float *g, const float *beta, const float *kept, const float *dout,
                    float *dmixed, float *dg, float *dbeta, int64_t rows, int64_t tokens, int64_t heads) {
  const int64_t pieces = (tokens + KEEP - 1) / KEEP;
  const float scale = 1.0f / sqrtf(DIM);
  float(*states)[DIM][DIM] = aligned_alloc(64, (KEEP + 1) * sizeof *states);
  float dS[DIM][DIM] __attribute__((aligned(64)));
  float q[KEEP][DIM], k[KEEP][DIM], u[KEEP][DIM], rq[KEEP], rk[KEEP];
  for (int64_t n = 0; n < rows * heads; n++) {
    const int64_t row = n / heads, head = n % heads;
    memset(dS, 0, sizeof dS);
    for (int64_t piece = pieces - 1; piece >= 0; piece--) {
      const int64_t start = piece * KEEP, count = tokens - start < KEEP ? tokens - start : KEEP;
      memcpy(states[0], kept + (n * pieces + piece) * DIM * DIM, sizeof states[0]);
      for (int64_t j = 0; j < count; j++) {
        const int64_t at = row * tokens + start + j;
        const float *in = mixed + (at * 3 * heads + head) * DIM;
        rq[j] = to_unit(in, q[j], scale);
        rk[j] = to_unit(in + heads * DIM, k[j], 1);
        memcpy(states[j + 1], states[j], sizeof states[0]);
        write_state(states[j + 1], k[j], in + 2 * heads * DIM, expf(g[at * heads + head]), beta[at * heads + head],
                    u[j]);
      }
      for (int64_t j = count - 1; j >= 0; j--) {
        const int64_t at = row * tokens + start + j, which = at * heads + head;
        const float(*restrict S)[DIM] = states[j], (*restrict after)[DIM] = states[j + 1];
        const float *restrict d = dout + which * DIM, a = expf(g[which]), b = beta[which];
        float du[DIM] = {0}, dq[DIM], dk[DIM], dr[DIM], da = 0;
        for (int i = 0; i < DIM; i++) {
          const float qi = q[j][i], ki = k[j][i];
          float toward_q = 0, toward_k = 0;
          for (int c = 0; c < DIM; c++) {
            const float x = dS[i][c] + qi * d[c];
            dS[i][c] = x;
            du[c] += ki * x;
            toward_k += x * u[j][c];
            toward_q += after[i][c] * d[c];
          }
          dq[i] = toward_q;
          dk[i] = toward_k;
        }
        float *into = dmixed + (at * 3 * heads + head) * DIM, *dv = into + 2 * heads * DIM;
        dbeta[which] = b > 1e-20f ? dot(du, u[j]) / b : 0;
        for (int c = 0; c < DIM; c++) {
          dv[c] = b * du[c];
          dr[c] = -b * du[c];
        }
        for (int i = 0; i < DIM; i++) {
          const float ki = k[j][i];
          float toward_k = 0, toward_a = 0;
          for (int c = 0; c < DIM; c++) {
            const float x = dS[i][c] + ki * dr[c];
            toward_k += S[i][c] * dr[c];
            toward_a += S[i][c] * x;
            dS[i][c] = a * x;
          }
          dk[i] += a * toward_k;
          da += toward_a;
        }
        dg[which] = a * da;
        to_unit_gradient(q[j], dq, into, rq[j], scale);
        to_unit_gradient(k[j], dk, into + heads * DIM, rk[j], 1);
      }
    }
  }
  free(states);
}
