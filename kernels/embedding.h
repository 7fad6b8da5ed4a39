// Sums over a batch's sparse features, whose rows have been gathered once per distinct key; and what a sample's vectors
// make with one another. Where rows are `dim` columns of wider ones, the others are neither read nor written.
#pragma once

#include <cstddef>

#include "kernels/sparse_batch.h"

namespace lodestone::kernels::cpu {

// out[s, d] += sum over the sample's features of value * rows[row, d]: the linear term (dim = 1 or classes).
void SparseLinear(const SparseBatch& batch, size_t dim, RowColumns rows, float* out);

// drows[row, d] += sum of value * dout[s, d].
void SparseLinearBackward(const SparseBatch& batch, size_t dim, const float* dout, GradientColumns drows);

// Second-order factorization machine (Rendle 2010, equation 5): out[s] += 1/2 sum_d ((sum_f v x)^2 - sum_f (v x)^2).
// sums [samples, dim] receives sum_f v x for the backward pass.
void FactorizationMachine(const SparseBatch& batch, size_t dim, RowColumns rows, float* sums, float* out);

// drows[row, d] += dout[s] * x * (sums[s, d] - x * rows[row, d]).
void FactorizationMachineBackward(const SparseBatch& batch, size_t dim, RowColumns rows, const float* sums,
                                  const float* dout, GradientColumns drows);

// For samples that all have `fields` features: out[s, col + f * dim + d] = value * rows[row, d], into a matrix with
// `stride` columns.
void GatherFields(const SparseBatch& batch, size_t fields, size_t dim, RowColumns rows, size_t stride, size_t col,
                  float* out);

// drows[row, d] += value * dx[s, col + f * dim + d].
void ScatterFields(const SparseBatch& batch, size_t fields, size_t dim, const float* dx, size_t stride, size_t col,
                   GradientColumns drows);

// Pooling by the largest: where is_max[s % fields] is not 0, out[s, d] = the largest rows[row, d] of the features of
// sample s, which here is one field of a model's sample; it has a feature at least. Elsewhere out stays.
void MaxFields(const SparseBatch& batch, size_t fields, const uint32_t* is_max, size_t dim, const float* rows,
               float* out);

// The gradient of each feature, dfeatures [features, dim], where `pooled` is what SparseLinear and MaxFields made of
// the rows: where is_max, dout[s, d] for the first feature that has the largest, else 0; elsewhere value * dout[s, d].
void MaxFieldsBackward(const SparseBatch& batch, size_t fields, const uint32_t* is_max, size_t dim, const float* rows,
                       const float* pooled, const float* dout, float* dfeatures);

// DLRM's interaction (Naumov et al. 2019): x is [samples, vectors, dim]; out[s, col + p] is the dot product of pair p
// of distinct vectors, pairs (1,0), (2,0), (2,1), (3,0), …; out has `stride` columns.
void DotInteraction(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride, size_t col, float* out);

// dx[s, v, d] += sum over pairs with v of dout[pair] * x[other].
void DotInteractionBackward(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride, size_t col,
                            const float* dout, float* dx);

// A gated mixture of experts (Jacobs et al. 1991): turns `gates`, [samples, experts], from logits into their softmax g,
// and out[s, d] = the sum over experts e of g[s, e] * x[e, s, d], with x [experts, samples, dim].
void MixExperts(size_t samples, size_t experts, size_t dim, const float* x, float* gates, float* out);

// From dout, [samples, dim], and the softmax g: with p[s, e] = the dot product of dout[s] and x[e, s],
// dgates[s, e] = g[s, e] * (p[s, e] - the sum over i of g[s, i] * p[s, i]), of the logits; dx[e, s, d] += g[s, e] *
// dout[s, d].
void MixExpertsBackward(size_t samples, size_t experts, size_t dim, const float* x, const float* gates,
                        const float* dout, float* dgates, float* dx);

}  // namespace lodestone::kernels::cpu
