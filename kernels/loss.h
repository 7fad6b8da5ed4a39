// Losses with their gradients, and the scores that metrics read.
#pragma once

#include <cstddef>

namespace lodestone::kernels::cpu {

// Each returns the sum (not the mean) of the samples' losses, in double, and writes the gradient of the MEAN loss over
// `rows` with respect to the logits into dlogits unless that is null; and predictions unless that is null.
// Without rows the loss is 0. NaN in a logit makes the loss, and the row's gradient, NaN.
//
// `weights`, [rows], multiply each row's loss and gradient; null: all are 1. The mean is over `rows` all the same.

// labels 0 or 1, logits [rows]; loss ln(1 + e^-z) for 1, ln(1 + e^z) for 0, without overflow. predictions: probability.
double LogisticLoss(size_t rows, const float* logits, const float* labels, const float* weights, float* dlogits,
                    float* predictions);

// labels are class indices in [0, classes), logits [rows, classes]. predictions: index of the largest logit (the first
// of equals), [rows]. A label outside makes the loss and its row's gradient NaN.
double SoftmaxLoss(size_t rows, size_t classes, const float* logits, const float* labels, const float* weights,
                   float* dlogits, float* predictions);

// loss (z - y)^2 / 2. predictions: z.
double SquaredLoss(size_t rows, const float* logits, const float* labels, const float* weights, float* dlogits,
                   float* predictions);

}  // namespace lodestone::kernels::cpu
