#pragma once
#include "../attention.h"
#include "address.h"

namespace milepost {

inline AttentionRows attention_rows(Address starts, Address lens, Int sequences) {
    return {at<const std::int32_t>(starts), at<const std::int32_t>(lens), sequences};
}

template <typename T>
void bind_attention_of(nb::module_& m, const char* attention_name, const char* store_kv_name) {
    define(m, attention_name,
           [](Address q, Int q_row, Int q_head, Address k, Address v, Address tables, Int table_width, Address starts,
              Address lens, Int sequences, Int heads, Int kv_heads, Int dim, Int window, float scale, float soft_cap,
              Address sinks, Address out, Address scratch) {
               Attention<T> a;
               a.shape = {heads, kv_heads, dim, window};
               a.rows = attention_rows(starts, lens, sequences);
               a.q = at<const T>(q), a.q_row = q_row, a.q_head = q_head;
               a.k = at<const T>(k), a.v = at<const T>(v);
               a.tables = at<const std::int32_t>(tables), a.table_width = table_width;
               a.sinks = at<const float>(sinks);
               a.scale = scale, a.soft_cap = soft_cap;
               a.out = at<T>(out);
               attention(a, at<void>(scratch));
           });
    define(m, store_kv_name,
           [](Address k, Int k_row, Address v, Int v_row, Address to_k, Address to_v, Address slots, Int rows, Int size) {
               store_kv(at<const T>(k), k_row, at<const T>(v), v_row, at<T>(to_k), at<T>(to_v), at<const Int>(slots), rows,
                        size);
           });
}

inline void bind_attention(nb::module_& m) {
    define(m, "attention_scratch",
           [](Address starts, Address lens, Int sequences, Int heads, Int kv_heads, Int dim, Int window) {
               return attention_scratch(attention_rows(starts, lens, sequences), {heads, kv_heads, dim, window});
           });
    m.attr("MAX_HEAD_DIM") = MAX_HEAD_DIM;
    bind_attention_of<float>(m, "attention_f32", "store_kv_f32");
    bind_attention_of<bf16>(m, "attention_bf16", "store_kv_bf16");
}

}  // namespace milepost
