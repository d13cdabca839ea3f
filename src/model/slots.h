/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Weight slots that the shared blocks know. An architecture's private slots start at W_COMMON_COUNT.
 */
#ifndef HEADRACE_MODEL_SLOTS_H
#define HEADRACE_MODEL_SLOTS_H

typedef enum weight_slot {
    /* once per model */
    W_EMBED,      /* [vocab, embd] */
    W_FINAL_NORM, /* [embd] */
    W_HEAD,       /* [vocab, embd]; absent: the embedding table */
    W_ROPE_FACTORS, /* [rotated / 2] F32: divisors of the rotary frequencies */
    /* per layer */
    W_ATTN_NORM,
    W_Q, W_K, W_V, W_O,
    W_Q_BIAS, W_K_BIAS, W_V_BIAS, W_O_BIAS,
    W_Q_NORM, W_K_NORM, /* over each head, or over the full width when that long */
    W_SINKS,            /* [heads]: one more logit in each head's denominator */
    W_ATTN_POST_NORM,
    W_FFN_NORM,
    W_GATE, W_UP, W_DOWN,
    W_FFN_POST_NORM,
    /* mixture of experts */
    W_ROUTER, W_ROUTER_BIAS,     /* [experts, embd], [experts] */
    W_SELECT_BIAS,               /* [experts]: enters the choice, not the weight */
    W_EXPERT_SCALE,              /* [experts]: multiplies the weight of each */
    W_EXP_GATE, W_EXP_UP, W_EXP_GATE_UP, W_EXP_DOWN, /* per expert; gate_up: both in one matrix */
    W_EXP_GATE_BIAS, W_EXP_UP_BIAS, W_EXP_GATE_UP_BIAS, W_EXP_DOWN_BIAS,
    W_SHARED_GATE, W_SHARED_UP, W_SHARED_DOWN, W_SHARED_ROUTER, /* the expert that every token takes, and its own gate */
    W_COMMON_COUNT
} weight_slot;

/** Slots whose weights belong to single experts: in the bank, not among the dense weights. */
#define W_IS_EXPERT(slot) ((slot) >= W_EXP_GATE && (slot) <= W_EXP_DOWN_BIAS)

#endif
