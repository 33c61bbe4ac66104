// What this machine can do at most: `machine THREADS` prints one JSON line of
//   read_bytes_per_s   all threads reading memory in order, far more of it than caches hold
//   dot_ops_per_s      all threads multiplying and adding bf16 pairs in registers; 0 without AVX512-BF16
#include <immintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_THREADS = 256, ACCUMULATORS = 16 };
static const size_t BYTES = 512u << 20;  // each thread's share
static const long DOTS = 100 * 1000 * 1000;

struct job {
  const char* data;
  double sink;
};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

static void* read_all(void* argument) {
  struct job* job = argument;
  typedef uint64_t lane __attribute__((vector_size(64)));
  const lane* p = (const lane*)job->data;
  lane a = {0}, b = {0}, c = {0}, d = {0};
  for (size_t i = 0; i < BYTES / sizeof(lane); i += 4) {
    __builtin_prefetch((const char*)(p + i) + 4096);
    a ^= p[i], b ^= p[i + 1], c ^= p[i + 2], d ^= p[i + 3];
  }
  a ^= b ^ c ^ d;
  job->sink = (double)a[0];
  return NULL;
}

#ifdef __AVX512BF16__
static void* dot_all(void* argument) {
  struct job* job = argument;
  __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f803f80), y = x;
  __m512 sum[ACCUMULATORS];
  for (int j = 0; j < ACCUMULATORS; ++j) sum[j] = _mm512_setzero_ps();
  for (long i = 0; i < DOTS; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < ACCUMULATORS; ++j) sum[j] = _mm512_dpbf16_ps(sum[j], x, y);
    __asm__ volatile("" : "+v"(x), "+v"(y));
  }
  for (int j = 1; j < ACCUMULATORS; ++j) sum[0] = _mm512_add_ps(sum[0], sum[j]);
  job->sink = _mm512_reduce_add_ps(sum[0]);
  return NULL;
}
#endif

static double seconds(void* (*run)(void*), struct job* jobs, int threads) {
  pthread_t ids[MAX_THREADS];
  double start = now();
  for (int i = 0; i < threads; ++i) pthread_create(&ids[i], NULL, run, &jobs[i]);
  for (int i = 0; i < threads; ++i) pthread_join(ids[i], NULL);
  return now() - start;
}

int main(int count, char** arguments) {
  int threads = count > 1 ? atoi(arguments[1]) : 1;
  if (threads < 1 || threads > MAX_THREADS) return 2;
  struct job jobs[MAX_THREADS];
  for (int i = 0; i < threads; ++i) {
    void* data = NULL;
    if (posix_memalign(&data, 1 << 21, BYTES)) return 1;
    memset(data, i + 1, BYTES);
    jobs[i].data = data;
  }
  double best = 1e30, dots = 0;
  for (int i = 0; i < 3; ++i) {
    double took = seconds(read_all, jobs, threads);
    if (took < best) best = took;
  }
#ifdef __AVX512BF16__
  double work = 64.0 * ACCUMULATORS * DOTS * threads;  // 16 sums of 2 products: 64 operations
  for (int i = 0; i < 3; ++i) {
    double rate = work / seconds(dot_all, jobs, threads);
    if (rate > dots) dots = rate;
  }
#endif
  printf("{\"read_bytes_per_s\": %.6g, \"dot_ops_per_s\": %.6g}\n", BYTES * (double)threads / best, dots);
  return jobs[0].sink == 1.5;
}
