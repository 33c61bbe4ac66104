// One extension module of kernels for one instruction set: compiled once for each, imported only where the machine has it.
#include <nanobind/nanobind.h>
#include <omp.h>

#include "bind/activation.h"
#include "bind/attention.h"
#include "bind/conv.h"
#include "bind/gemm.h"
#include "bind/moe.h"
#include "bind/norm.h"
#include "bind/recurrence.h"
#include "bind/rope.h"
#include "bind/scan.h"

namespace nb = nanobind;

#if defined(MILEPOST_PORTABLE)
/// The instruction sets that this machine has, best first. Asked of the portable module, which runs everywhere.
static nb::list instruction_sets() {
    nb::list found;
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (avx512 && __builtin_cpu_supports("avx512bf16")) found.append("avx512bf16");
    if (avx512) found.append("avx512");
    if (avx2) found.append("avx2");
#endif
    found.append("portable");
    return found;
}
#endif

NB_MODULE(MILEPOST_MODULE, m) {
    m.def("num_threads", [] { return omp_get_max_threads(); });
#if defined(MILEPOST_PORTABLE)
    m.def("instruction_sets", &instruction_sets);
#endif
    milepost::bind_activation(m);
    milepost::bind_attention(m);
    milepost::bind_conv(m);
    milepost::bind_gemm(m);
    milepost::bind_moe(m);
    milepost::bind_norm(m);
    milepost::bind_recurrence(m);
    milepost::bind_rope(m);
    milepost::bind_scan(m);
}
