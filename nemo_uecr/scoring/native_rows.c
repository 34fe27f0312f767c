/* One pass over rows of logits: largest logit, sums of exponentials, weighted sum.
 *
 * Built on first use by `native.py` with the machine's C compiler. A row is taken in blocks of columns that
 * stay in the first-level cache: their maximum first, then the exponentials, shifted by the largest logit so
 * far. Every row goes through the same instructions in the same order whatever else is asked and whichever
 * rows stand beside it, so its statistics are reproducible bit for bit.
 */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
typedef __m512 vfloat;
#define V(name) _mm512_##name
#define CONVERT_HALF _mm512_cvtph_ps
#define WIDEN _mm512_cvtepu16_epi32
typedef __m512i vint;
typedef __m256i vhalf;
#define AS_FLOAT _mm512_castsi512_ps
#define AS_INT _mm512_castps_si512
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define LANES 8
typedef __m256 vfloat;
#define V(name) _mm256_##name
#define CONVERT_HALF _mm256_cvtph_ps
#define WIDEN _mm256_cvtepu16_epi32
typedef __m256i vint;
typedef __m128i vhalf;
#define AS_FLOAT _mm256_castsi256_ps
#define AS_INT _mm256_castps_si256
#else
#error "needs AVX2 with FMA and F16C, or AVX-512"
#endif

#define CHAINS 4 /* independent accumulators, to hide the latency of an addition */
#define STEP (LANES * CHAINS)
#define BLOCK 4096 /* columns of one block: 16 KiB of float */
#define MAX_SUMS 8
#define FLOOR -1.0e4f /* stands for -inf in a shifted logit */
#define INLINE static inline __attribute__((always_inline))

enum dtype { FLOAT32 = 0, BFLOAT16 = 1, FLOAT16 = 2 };

INLINE vfloat splat(float x) { return V(set1_ps)(x); }

/* One vector of logits as float32. */
INLINE vfloat load_logits(const char *p, int dtype) {
    vhalf half;
    if (dtype == FLOAT32) return V(loadu_ps)((const float *)p);
    memcpy(&half, p, sizeof half);
    if (dtype == BFLOAT16) return AS_FLOAT(V(slli_epi32)(WIDEN(half), 16));
    return CONVERT_HALF(half);
}

/* Whether a or b holds a NaN. */
INLINE int any_nan(vfloat a, vfloat b) {
#if LANES == 16
    return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
#else
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q));
#endif
}

/* exp(x / T) of FLOOR <= x <= 0. With U = STEPS powers of two to the octave: k = round(U x / (T ln 2)) / U,
 * r = x - k T ln 2, then 2^k times a polynomial in r / T. The rounding by a large constant leaves the index of
 * the fractional power of two in the low bits of the sum. Relative error 1e-7, and the rounding of T. */
typedef struct {
    float floor, per_step, step, c[6];
} exponential;

#if LANES == 16
#define STEPS 32
#define DEGREE 2
static const double COEFFICIENTS[] = {1.0, 1.00001467, 0.49999998};
static float fractional_powers[STEPS];
static __attribute__((constructor)) void fill_fractional_powers(void) {
    for (int i = 0; i < STEPS; i++) fractional_powers[i] = (float)exp2(i / (double)STEPS);
}
#else
#define STEPS 1
#define DEGREE 5
static const double COEFFICIENTS[] = {1.0, 1.0, 0x1.fffdfcp-2, 0x1.5557b0p-3, 0x1.572a64p-5, 0x1.106250p-7};
#endif

INLINE exponential exponential_at(double temperature) {
    exponential f = {
        .floor = (float)(-87.0 * temperature),
        .per_step = (float)(1.4426950408889634 / temperature),
        .step = (float)(-0.6931471805599453 * temperature),
    };
    double power = 1.0;
    for (int i = 0; i <= DEGREE; i++, power /= temperature) f.c[i] = (float)(COEFFICIENTS[i] * power);
    return f;
}

INLINE vfloat exp_lanes(vfloat x, const exponential *f) {
    const vfloat magic = splat(12582912.0f / STEPS); /* 1.5 * 2^23 / U */
#if LANES == 8
    x = V(max_ps)(splat(f->floor), x); /* what would be below 1e-37 stays so, which beside the largest, 1, is 0 */
#endif
    vfloat rounded = V(fmadd_ps)(x, splat(f->per_step), magic);
    vfloat k = V(sub_ps)(rounded, magic);
    vfloat r = V(fmadd_ps)(k, splat(f->step), x);
#if LANES == 16
    vfloat low = V(loadu_ps)(fractional_powers), high = V(loadu_ps)(fractional_powers + LANES);
    vfloat power = _mm512_permutex2var_ps(low, AS_INT(rounded), high);
    vfloat p = V(mul_ps)(V(fmadd_ps)(splat(f->c[2]), r, splat(f->c[1])), r);
    return _mm512_scalef_ps(V(fmadd_ps)(p, power, power), k);
#else
    vfloat p = splat(f->c[5]);
    for (int i = DEGREE - 1; i >= 0; i--) p = V(fmadd_ps)(p, r, splat(f->c[i]));
    return AS_FLOAT(V(add_epi32)(AS_INT(p), V(slli_epi32)(AS_INT(rounded), 23)));
#endif
}

INLINE double add_lanes(vfloat v) {
    float lane[LANES];
    double total = 0.0;
    V(storeu_ps)(lane, v);
    for (int j = 0; j < LANES; j++) total += lane[j];
    return total;
}

INLINE double add_chains(const vfloat *sum) {
    return add_lanes(V(add_ps)(V(add_ps)(sum[0], sum[1]), V(add_ps)(sum[2], sum[3])));
}

/* Largest logit of a block; NaN if the block holds one. */
INLINE float block_max(const char *block, int n, int dtype, int size) {
    vfloat top[CHAINS], z[CHAINS];
    int nan = 0;
    for (int c = 0; c < CHAINS; c++) top[c] = splat(-INFINITY);
    for (int i = 0; i < n; i += STEP) {
        for (int c = 0; c < CHAINS; c++) {
            z[c] = load_logits(block + (i + c * LANES) * size, dtype);
            top[c] = V(max_ps)(z[c], top[c]);
        }
        nan |= any_nan(z[0], z[1]) | any_nan(z[2], z[3]);
    }
    if (nan) return NAN;
    float lane[LANES], best = -INFINITY;
    V(storeu_ps)(lane, V(max_ps)(V(max_ps)(top[0], top[1]), V(max_ps)(top[2], top[3])));
    for (int j = 0; j < LANES; j++) best = lane[j] > best ? lane[j] : best;
    return best;
}

INLINE vfloat shift_lanes(const char *p, int dtype, float max) {
    return V(max_ps)(splat(FLOOR), V(sub_ps)(load_logits(p, dtype), splat(max)));
}

/* Sum of exp(z - max), and of (z - max) exp(z - max) if weighted; keeps z - max in `shifted`. */
INLINE double first_sum(const char *block, int n, int dtype, int size, float max, int weighted, int64_t ahead,
                        double *weight, float *shifted) {
    const exponential plain = exponential_at(1.0);
    vfloat sum[CHAINS], weigh[CHAINS];
    for (int c = 0; c < CHAINS; c++) sum[c] = weigh[c] = splat(0.0f);
    for (int i = 0; i < n; i += STEP) {
        for (int line = 0; line < STEP * size; line += 64) __builtin_prefetch(block + ahead + i * size + line);
        for (int c = 0; c < CHAINS; c++) {
            vfloat d = shift_lanes(block + (i + c * LANES) * size, dtype, max);
            V(storeu_ps)(shifted + i + c * LANES, d);
            vfloat e = exp_lanes(d, &plain);
            sum[c] = V(add_ps)(sum[c], e);
            if (weighted) weigh[c] = V(fmadd_ps)(d, e, weigh[c]);
        }
    }
    if (weighted) *weight = add_chains(weigh);
    return add_chains(sum);
}

/* Sum of exp(shifted / temperature). */
static __attribute__((noinline)) double other_sum(const float *shifted, int n, double temperature) {
    const exponential scaled = exponential_at(temperature);
    vfloat sum[CHAINS];
    for (int c = 0; c < CHAINS; c++) sum[c] = splat(0.0f);
    for (int i = 0; i < n; i += STEP)
        for (int c = 0; c < CHAINS; c++)
            sum[c] = V(add_ps)(sum[c], exp_lanes(V(loadu_ps)(shifted + i + c * LANES), &scaled));
    return add_chains(sum);
}

typedef struct {
    float max;
    double sum[MAX_SUMS], weight;
} state;

/* Move what was summed so far to a larger maximum. */
static __attribute__((noinline)) void raise_max(state *s, float max, const double *temperatures, int sums, int weighted) {
    if (s->max > -INFINITY) {
        double shift = (double)s->max - (double)max;
        if (weighted) s->weight = (s->weight + shift * s->sum[0]) * exp(shift);
        for (int k = 0; k < sums; k++) s->sum[k] *= exp(shift / temperatures[k]);
    }
    s->max = max;
}

INLINE void add_block(const char *block, int n, int dtype, int size, const double *temperatures, int sums,
                      int weighted, int64_t ahead, state *s) {
    float shifted[BLOCK];
    float max = block_max(block, n, dtype, size);
    if (!(max <= s->max)) raise_max(s, max, temperatures, sums, weighted);
    if (!(s->max > -INFINITY && s->max < INFINITY)) return; /* only -inf so far, or nothing finite to add to */
    int k = 0;
    if (temperatures[0] == 1.0) {
        double weight = 0.0;
        s->sum[0] += weighted ? first_sum(block, n, dtype, size, s->max, 1, ahead, &weight, shifted)
                              : first_sum(block, n, dtype, size, s->max, 0, ahead, &weight, shifted);
        s->weight += weight;
        k = 1;
    } else {
        for (int i = 0; i < n; i += LANES)
            V(storeu_ps)(shifted + i, shift_lanes(block + i * size, dtype, s->max));
    }
    for (; k < sums; k++) s->sum[k] += other_sum(shifted, n, temperatures[k]);
}

INLINE void reduce_row(const char *row, int64_t columns, int dtype, int size, const double *temperatures, int sums,
                       int weighted, float *stats, int64_t stride) {
    state s = {.max = -INFINITY};
    char tail[BLOCK * 4];
    for (int64_t start = 0; start < columns; start += BLOCK) {
        int n = columns - start < BLOCK ? (int)(columns - start) : BLOCK;
        const char *block = row + start * size;
        int padded = (n + STEP - 1) / STEP * STEP;
        if (padded > n) { /* the last block, padded with -inf */
            const uint32_t infinity = dtype == FLOAT32 ? 0xff800000u : dtype == BFLOAT16 ? 0xff80u : 0xfc00u;
            memcpy(tail, block, (size_t)n * size);
            for (int i = n; i < padded; i++) memcpy(tail + i * size, &infinity, size);
            block = tail;
        }
        int64_t ahead = start + 2 * BLOCK <= columns ? (int64_t)BLOCK * size : 0;
        add_block(block, padded, dtype, size, temperatures, sums, weighted, ahead, &s);
        if (!(s.max < INFINITY)) break; /* a NaN or +inf settles the row */
    }
    stats[0] = s.max;
    for (int k = 0; k < sums; k++) stats[(2 + k) * stride] = (float)s.sum[k];
    if (weighted) stats[(2 + sums) * stride] = (float)s.weight;
}

#define REDUCE_ROWS(DTYPE, SIZE)                                                                        \
    for (int64_t n = 0; n < rows; n++)                                                                  \
        reduce_row(logits + n * row_stride * SIZE, columns, DTYPE, SIZE, temperatures, sums, weighted,  \
                   stats + n, stats_stride)

/* Statistics of each row: the maximum in row 0 of `stats`, the sums from row 2, the weighted sum last.
 * Row 1, the target's logit, is left alone. Strides count elements; `sums` is at most MAX_SUMS. */
void uecr_reduce_rows(const char *logits, int dtype, int64_t rows, int64_t columns, int64_t row_stride,
                      const double *temperatures, int sums, int weighted, float *stats, int64_t stats_stride) {
    if (dtype == FLOAT32) {
        REDUCE_ROWS(FLOAT32, 4);
    } else if (dtype == BFLOAT16) {
        REDUCE_ROWS(BFLOAT16, 2);
    } else {
        REDUCE_ROWS(FLOAT16, 2);
    }
}
