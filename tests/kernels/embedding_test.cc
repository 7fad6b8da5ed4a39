#include "kernels/embedding.h"

#include <cmath>
#include <string>
#include <vector>

#include "tests/kernels/backend.h"
#include "tests/kernels/exact.h"
#include "tests/kernels/special_values.h"

namespace lodestone::kernels {
namespace {

constexpr size_t kDistinct = 7;  // Rows; few, so that they occur several times in a batch and in a sample.
constexpr size_t kFeaturesMax = 9;
constexpr double kPoolStep = 0.125;  // Of central differences of functions of degree two, which any step serves.

struct Batch {
  std::vector<uint32_t> offsets = {0};
  std::vector<uint32_t> row;
  std::vector<float> value;
  bool has_values = false;

  size_t samples() const { return offsets.size() - 1; }
  float Value(size_t f) const { return has_values ? value[f] : 1.0f; }
  SparseBatch View() const { return {samples(), offsets.data(), row.data(), has_values ? value.data() : nullptr}; }
};

// How far the central difference of a function may be off that sums up `terms` products in double, each of magnitude at
// most 2 (1 + step)^2 features: two such sums' rounding, over two steps.
double DifferenceError(size_t terms) {
  return static_cast<double>(terms) * 0x1p-53 * static_cast<double>(terms) * 3 * kFeaturesMax / kPoolStep;
}

class EmbeddingTest : public KernelTest {
 protected:
  // Samples with `features` features each, or from none to kFeaturesMax if that is null.
  Batch MakeBatch(size_t samples, bool has_values, const size_t* features) {
    Batch batch;
    const std::vector<uint32_t> counts = RandomIndices(samples, kFeaturesMax + 1);
    for (size_t s = 0; s < samples; ++s) {
      batch.offsets.push_back(batch.offsets.back() +
                              static_cast<uint32_t>(features != nullptr ? *features : counts[s]));
    }
    batch.row = RandomIndices(batch.offsets.back(), kDistinct);
    batch.value = Random(batch.offsets.back());
    batch.has_values = has_values;
    return batch;
  }

  // Calls check(batch, dim, name) for batches of several sizes, with and without values, and all widths of rows.
  template <class Check>
  void ForBatches(const Check& check, const size_t* features = nullptr) {
    for (const size_t dim : kSizes) {
      for (const size_t samples : {0, 1, 6}) {
        for (const bool has_values : {false, true}) {
          check(MakeBatch(samples, has_values, features), dim,
                "dim " + std::to_string(dim) + " samples " + std::to_string(samples) + " values " +
                    std::to_string(has_values));
        }
      }
    }
  }

  // Compares a kernel's gradient, added to `before`, with central differences of `loss`, whose terms are `terms`.
  // `magnitudes` holds the terms that the kernel adds up, for the tolerance.
  template <class Loss>
  void CheckGradient(const std::vector<float>& got, const std::vector<float>& before, const std::vector<float>& at,
                     const Loss& loss, size_t terms, std::vector<Exact> magnitudes, const std::string& name) {
    std::vector<double> x = Widen(at);
    for (size_t i = 0; i < x.size(); ++i) {
      magnitudes[i].SetValue(before[i] + CentralDifference(loss, x, i, kPoolStep), DifferenceError(terms));
    }
    ExpectClose(got, magnitudes, name);
  }

  static std::vector<Exact> StartAt(const std::vector<float>& before) { return {before.begin(), before.end()}; }
};

// Calls visit(sample, feature, row) for every feature of the batch.
template <class Visit>
void ForFeatures(const Batch& batch, const Visit& visit) {
  for (size_t s = 0; s < batch.samples(); ++s) {
    for (size_t f = batch.offsets[s]; f < batch.offsets[s + 1]; ++f) visit(s, f, batch.row[f]);
  }
}

TEST_P(EmbeddingTest, SparseLinearAddsUpRows) {
  ForBatches([&](const Batch& batch, size_t dim, const std::string& name) {
    const std::vector<float> rows = Random(kDistinct * dim);
    std::vector<float> out = Random(batch.samples() * dim);
    std::vector<Exact> want = StartAt(out);
    ForFeatures(batch, [&](size_t s, size_t f, size_t row) {
      for (size_t d = 0; d < dim; ++d) {
        want[s * dim + d].Add(static_cast<double>(batch.Value(f)) * rows[row * dim + d]);
      }
    });
    GetParam().sparse_linear(batch.View(), dim, {rows.data(), dim}, out.data());
    ExpectClose(out, want, name);
  });
}

TEST_P(EmbeddingTest, SparseLinearBackwardIsItsDerivative) {
  ForBatches([&](const Batch& batch, size_t dim, const std::string& name) {
    const std::vector<float> rows = Random(kDistinct * dim);
    const std::vector<float> dout = Random(batch.samples() * dim);
    const std::vector<float> before = Random(kDistinct * dim);
    std::vector<float> drows = before;
    std::vector<Exact> magnitudes = StartAt(before);
    ForFeatures(batch, [&](size_t s, size_t f, size_t row) {
      for (size_t d = 0; d < dim; ++d) magnitudes[row * dim + d].Add(batch.Value(f) * dout[s * dim + d]);
    });
    const auto loss = [&](const std::vector<double>& at) {
      double sum = 0;
      ForFeatures(batch, [&](size_t s, size_t f, size_t row) {
        for (size_t d = 0; d < dim; ++d) sum += dout[s * dim + d] * batch.Value(f) * at[row * dim + d];
      });
      return sum;
    };
    GetParam().sparse_linear_backward(batch.View(), dim, dout.data(), {drows.data(), dim});
    CheckGradient(drows, before, rows, loss, batch.row.size() * dim, magnitudes, name);
  });
}

// The sums that the factorization machine leaves behind, with the tolerances of its float arithmetic.
std::vector<Exact> MachineSums(const Batch& batch, size_t dim, const std::vector<float>& rows) {
  std::vector<Exact> sums(batch.samples() * dim);
  ForFeatures(batch, [&](size_t s, size_t f, size_t row) {
    for (size_t d = 0; d < dim; ++d) sums[s * dim + d].Add(static_cast<double>(batch.Value(f)) * rows[row * dim + d]);
  });
  return sums;
}

// Per sample, by the definition: the sum over pairs of features of the products of their rows.
std::vector<double> PairProducts(const Batch& batch, size_t dim, const std::vector<double>& rows) {
  std::vector<double> products(batch.samples());
  for (size_t s = 0; s < batch.samples(); ++s) {
    for (size_t f = batch.offsets[s]; f < batch.offsets[s + 1]; ++f) {
      for (size_t g = batch.offsets[s]; g < f; ++g) {
        for (size_t d = 0; d < dim; ++d) {
          products[s] += static_cast<double>(batch.Value(f)) * batch.Value(g) * rows[batch.row[f] * dim + d] *
                         rows[batch.row[g] * dim + d];
        }
      }
    }
  }
  return products;
}

TEST_P(EmbeddingTest, FactorizationMachineAddsThePairsProducts) {
  ForBatches([&](const Batch& batch, size_t dim, const std::string& name) {
    const std::vector<float> rows = Random(kDistinct * dim);
    const std::vector<float> before = Random(batch.samples());
    std::vector<float> out = before;
    std::vector<float> sums(batch.samples() * dim, kNan);
    GetParam().factorization_machine(batch.View(), dim, {rows.data(), dim}, sums.data(), out.data());
    const std::vector<Exact> want_sums = MachineSums(batch, dim, rows);
    ExpectClose(sums, want_sums, name + " sums");
    const std::vector<double> products = PairProducts(batch, dim, Widen(rows));
    std::vector<Exact> want = StartAt(before);
    for (size_t s = 0; s < batch.samples(); ++s) {
      for (size_t d = 0; d < dim; ++d) {
        // Half the square of the sum, and half the squares, which that covers; each is a sum over the features, whose
        // error counts twice in the square.
        const double magnitude = want_sums[s * dim + d].magnitude();
        want[s].AddWithMagnitude(0, magnitude * magnitude, 2 * kFeaturesMax + 4);
      }
      want[s].SetValue(before[s] + products[s], DifferenceError(batch.row.size() * dim));
    }
    ExpectClose(out, want, name);
  });
}

TEST_P(EmbeddingTest, FactorizationMachineBackwardIsItsDerivative) {
  ForBatches([&](const Batch& batch, size_t dim, const std::string& name) {
    const std::vector<float> rows = Random(kDistinct * dim);
    const std::vector<float> dout = Random(batch.samples());
    const std::vector<float> before = Random(kDistinct * dim);
    std::vector<float> drows = before, out(batch.samples()), sums(batch.samples() * dim);
    GetParam().factorization_machine(batch.View(), dim, {rows.data(), dim}, sums.data(), out.data());
    GetParam().factorization_machine_backward(batch.View(), dim, {rows.data(), dim}, sums.data(), dout.data(),
                                              {drows.data(), dim});
    const std::vector<Exact> machine_sums = MachineSums(batch, dim, rows);
    std::vector<Exact> magnitudes = StartAt(before);
    ForFeatures(batch, [&](size_t s, size_t f, size_t row) {
      for (size_t d = 0; d < dim; ++d) {
        const double others = machine_sums[s * dim + d].magnitude() + std::abs(batch.Value(f) * rows[row * dim + d]);
        magnitudes[row * dim + d].AddWithMagnitude(0, std::abs(dout[s] * batch.Value(f)) * others, kFeaturesMax + 5);
      }
    });
    // A row that a sample has twice makes a pair with itself: still of degree two in each element.
    const auto loss = [&](const std::vector<double>& at) {
      const std::vector<double> products = PairProducts(batch, dim, at);
      double sum = 0;
      for (size_t s = 0; s < batch.samples(); ++s) sum += dout[s] * products[s];
      return sum;
    };
    // The kernel treats the features of a sample as different ones, f and g; so does the sum over pairs f > g.
    CheckGradient(drows, before, rows, loss, batch.row.size() * kFeaturesMax * dim, magnitudes, name);
  });
}

TEST_P(EmbeddingTest, FieldsAreGatheredIntoColumnsAndScatteredBack) {
  for (const size_t fields : {0, 1, 3, 5}) {
    constexpr size_t kCol = 3;
    const auto check = [&](const Batch& batch, size_t dim, const std::string& name) {
      const size_t stride = kCol + fields * dim + 2;
      const std::vector<float> rows = Random(kDistinct * dim);
      std::vector<float> out = Random(batch.samples() * stride);
      std::vector<float> want = out;
      const std::vector<float> dx = Random(batch.samples() * stride);
      std::vector<float> drows = Random(kDistinct * dim);
      std::vector<Exact> want_drows = StartAt(drows);
      ForFeatures(batch, [&](size_t s, size_t f, size_t row) {
        for (size_t d = 0; d < dim; ++d) {
          const size_t at = s * stride + kCol + (f - batch.offsets[s]) * dim + d;
          want[at] = batch.Value(f) * rows[row * dim + d];
          // The forward pass is linear: its derivative is the value itself.
          want_drows[row * dim + d].Add(static_cast<double>(batch.Value(f)) * dx[at]);
        }
      });
      GetParam().gather_fields(batch.View(), fields, dim, {rows.data(), dim}, stride, kCol, out.data());
      ExpectEqual(out, want, name);  // One multiplication rounds the same everywhere.
      GetParam().scatter_fields(batch.View(), fields, dim, dx.data(), stride, kCol, {drows.data(), dim});
      ExpectClose(drows, want_drows, name);
    };
    ForBatches(check, &fields);
  }
}

TEST_P(EmbeddingTest, ScatterFieldsIsTheDerivativeOfGatherFields) {
  constexpr size_t kFields = 4;
  const auto check = [&](const Batch& batch, size_t dim, const std::string& name) {
    const size_t stride = kFields * dim;
    const std::vector<float> rows = Random(kDistinct * dim);
    const std::vector<float> dx = Random(batch.samples() * stride);
    const std::vector<float> before = Random(kDistinct * dim);
    std::vector<float> drows = before;
    std::vector<Exact> magnitudes = StartAt(before);
    ForFeatures(batch, [&](size_t s, size_t f, size_t row) {
      const float* from = dx.data() + s * stride + (f - batch.offsets[s]) * dim;
      for (size_t d = 0; d < dim; ++d) magnitudes[row * dim + d].Add(batch.Value(f) * from[d]);
    });
    const auto loss = [&](const std::vector<double>& at) {
      double sum = 0;
      ForFeatures(batch, [&](size_t s, size_t f, size_t row) {
        const float* from = dx.data() + s * stride + (f - batch.offsets[s]) * dim;
        for (size_t d = 0; d < dim; ++d) sum += static_cast<double>(from[d]) * batch.Value(f) * at[row * dim + d];
      });
      return sum;
    };
    GetParam().scatter_fields(batch.View(), kFields, dim, dx.data(), stride, 0, {drows.data(), dim});
    CheckGradient(drows, before, rows, loss, batch.row.size() * dim, magnitudes, name);
  };
  ForBatches(check, &kFields);
}

// Numbers whose sums and products are exact in float, in any order.
std::vector<float> WholeNumbers(const std::vector<uint32_t>& numbers) {
  std::vector<float> whole;
  for (const uint32_t number : numbers) whole.push_back(static_cast<float>(number) - 2);
  return whole;
}

TEST_P(EmbeddingTest, ColumnsOfWiderRowsAreAsRowsOfTheirOwn) {
  constexpr size_t kFields = 3, kFrom = 2;
  const auto check = [&](Batch batch, size_t dim, const std::string& name) {
    const auto whole = [&](size_t n) { return WholeNumbers(RandomIndices(n, 5)); };
    batch.value = whole(batch.row.size());
    const size_t width = kFrom + dim + 1, samples = batch.samples(), out_width = kFields * dim;
    const std::vector<float> rows = whole(kDistinct * dim), begun = whole(kDistinct * dim),
                             dx = whole(samples * out_width);
    // The same amid columns of others.
    const auto widened = [&](const std::vector<float>& narrow, float other) {
      std::vector<float> wide(kDistinct * width, other);
      for (size_t i = 0; i < narrow.size(); ++i) wide[i / dim * width + kFrom + i % dim] = narrow[i];
      return wide;
    };
    const std::vector<float> wide_rows = widened(rows, kNan);
    const RowColumns apart = {rows.data(), dim}, among = {wide_rows.data() + kFrom, width};
    const auto forward = [&](RowColumns from) {
      std::vector<float> all(samples * (3 * dim + 1 + out_width));
      float* const linear = all.data();
      float* const sums = linear + samples * dim;
      float* const machine = sums + samples * dim;
      float* const fields = machine + samples;
      GetParam().sparse_linear(batch.View(), dim, from, linear);
      GetParam().factorization_machine(batch.View(), dim, from, sums, machine);
      GetParam().gather_fields(batch.View(), kFields, dim, from, out_width, 0, fields);
      return all;
    };
    ExpectEqual(forward(among), forward(apart), name);
    const auto backward = [&](RowColumns from, GradientColumns to) {
      GetParam().sparse_linear_backward(batch.View(), dim, dx.data(), to);
      GetParam().factorization_machine_backward(batch.View(), dim, from, dx.data(), dx.data(), to);
      GetParam().scatter_fields(batch.View(), kFields, dim, dx.data(), out_width, 0, to);
    };
    std::vector<float> drows = begun, wide_drows = widened(begun, 77);
    backward(apart, {drows.data(), dim});
    backward(among, {wide_drows.data() + kFrom, width});
    ExpectEqual(wide_drows, widened(drows, 77), name + " gradients");
  };
  ForBatches(check, &kFields);
}

TEST_P(EmbeddingTest, MaxFieldsPoolsByTheLargestAndItsGradientGoesToTheFirstThatHasIt) {
  const std::vector<uint32_t> is_max = {1, 0, 1};
  for (const size_t features : {1, 4}) {
    const auto check = [&](const Batch& batch, size_t dim, const std::string& name) {
      std::vector<float> rows = Random(kDistinct * dim);
      if (dim > 0) rows[dim] = rows[0];  // Two rows that are equal in an element.
      const size_t n = batch.samples() * dim;
      std::vector<float> pooled = Random(n);
      std::vector<float> want = pooled;
      const std::vector<float> dout = Random(n);
      std::vector<float> dfeatures = Random(batch.row.size() * dim);
      std::vector<float> want_features(dfeatures.size());
      for (size_t s = 0; s < batch.samples(); ++s) {
        for (size_t d = 0; d < dim; ++d) {
          size_t first = batch.offsets[s];
          for (size_t f = first; f < batch.offsets[s + 1]; ++f) {
            if (rows[batch.row[f] * dim + d] > rows[batch.row[first] * dim + d]) first = f;
          }
          if (is_max[s % is_max.size()] != 0) want[s * dim + d] = rows[batch.row[first] * dim + d];
          for (size_t f = batch.offsets[s]; f < batch.offsets[s + 1]; ++f) {
            want_features[f * dim + d] = is_max[s % is_max.size()] == 0 ? batch.Value(f) * dout[s * dim + d]
                                         : f == first                   ? dout[s * dim + d]
                                                                        : 0.0f;
          }
        }
      }
      GetParam().max_fields(batch.View(), is_max.size(), is_max.data(), dim, rows.data(), pooled.data());
      ExpectEqual(pooled, want, name);
      GetParam().max_fields_backward(batch.View(), is_max.size(), is_max.data(), dim, rows.data(), pooled.data(),
                                     dout.data(), dfeatures.data());
      ExpectEqual(dfeatures, want_features, name);
    };
    ForBatches(check, &features);
  }
}

// A batch in which row 0 has nearly every third feature, rows of the middle some, and most rows one or none.
Batch SkewedBatch(size_t samples, size_t fields, uint32_t distinct) {
  Batch batch;
  uint32_t next = 1;
  for (size_t s = 0; s < samples; ++s) {
    for (size_t f = 0; f < fields; ++f) {
      const size_t n = s * fields + f;
      batch.row.push_back(n % 3 == 0 ? 0 : n % 3 == 1 ? 1 + static_cast<uint32_t>(n % 40) : next++ % distinct);
      batch.value.push_back(0.5f + 0.001f * static_cast<float>(n % 100));
    }
    batch.offsets.push_back(static_cast<uint32_t>(batch.row.size()));
  }
  batch.has_values = true;
  return batch;
}

TEST_P(EmbeddingTest, RowsThatMostOfABatchHasGetAllTheirGradients) {
  constexpr size_t kSamples = 403, kFields = 7;
  constexpr uint32_t kRows = 1500;
  const Batch batch = SkewedBatch(kSamples, kFields, kRows);
  for (const size_t dim : {1, 16, 300}) {
    const std::string name = "dim " + std::to_string(dim);
    const std::vector<float> rows = Random(kRows * dim), dout = Random(kSamples * dim), before = Random(kRows * dim);
    std::vector<float> drows = before;
    std::vector<Exact> want = StartAt(before);
    ForFeatures(batch, [&](size_t s, size_t f, size_t row) {
      for (size_t d = 0; d < dim; ++d) {
        want[row * dim + d].Add(static_cast<double>(batch.Value(f)) * dout[s * dim + d]);
      }
    });
    GetParam().sparse_linear_backward(batch.View(), dim, dout.data(), {drows.data(), dim});
    ExpectClose(drows, want, name + " linear");

    const size_t stride = kFields * dim;
    const std::vector<float> dx = Random(kSamples * stride);
    drows = before;
    want = StartAt(before);
    ForFeatures(batch, [&](size_t s, size_t f, size_t row) {
      const float* const from = dx.data() + s * stride + (f - batch.offsets[s]) * dim;
      for (size_t d = 0; d < dim; ++d) want[row * dim + d].Add(static_cast<double>(batch.Value(f)) * from[d]);
    });
    GetParam().scatter_fields(batch.View(), kFields, dim, dx.data(), stride, 0, {drows.data(), dim});
    ExpectClose(drows, want, name + " fields");
  }
}

TEST_P(EmbeddingTest, OrderedSumsAreTheSameBitsAgain) {
  if (GetParam().name == CudaPlain::kName) GTEST_SKIP() << "without an order, bits are chance's";
  constexpr size_t kSamples = 403, kFields = 7, kDim = 16;
  constexpr uint32_t kRows = 1500;
  const Batch batch = SkewedBatch(kSamples, kFields, kRows);
  const std::vector<float> rows = Random(kRows * kDim), dout = Random(kSamples), before = Random(kRows * kDim);
  std::vector<float> sums(kSamples * kDim), out(kSamples), first;
  for (int round = 0; round < 3; ++round) {
    std::vector<float> drows = before;
    GetParam().factorization_machine(batch.View(), kDim, {rows.data(), kDim}, sums.data(), out.data());
    GetParam().factorization_machine_backward(batch.View(), kDim, {rows.data(), kDim}, sums.data(), dout.data(),
                                              {drows.data(), kDim});
    if (round == 0) first = drows;
    ExpectEqual(drows, first, "round " + std::to_string(round));
  }
}

class InteractionTest : public EmbeddingTest {
 protected:
  static constexpr size_t kCol = 2;

  // Calls check(samples, vectors, dim, name) for all numbers and widths of vectors.
  template <class Check>
  void ForVectors(std::vector<size_t> counts, const Check& check) {
    for (const size_t samples : {0, 1, 3}) {
      for (const size_t vectors : counts) {
        for (const size_t dim : kSizes) {
          check(samples, vectors, dim,
                std::to_string(samples) + "x" + std::to_string(vectors) + "x" + std::to_string(dim));
        }
      }
    }
  }

  // Calls visit(pair, i, j) for the pairs j < i in their order.
  template <class Visit>
  static void ForPairs(size_t vectors, const Visit& visit) {
    size_t pair = 0;
    for (size_t i = 1; i < vectors; ++i) {
      for (size_t j = 0; j < i; ++j) visit(pair++, i, j);
    }
  }

  static size_t Stride(size_t vectors) { return kCol + (vectors == 0 ? 0 : vectors * (vectors - 1) / 2) + 3; }
};

TEST_P(InteractionTest, WritesThePairsDotProductsAndNothingBesides) {
  ForVectors({kSizes, std::end(kSizes)}, [&](size_t samples, size_t vectors, size_t dim, const std::string& name) {
    const size_t stride = Stride(vectors);
    const std::vector<float> x = Random(samples * vectors * dim);
    std::vector<float> out = Random(samples * stride);
    std::vector<Exact> want = StartAt(out);
    for (size_t s = 0; s < samples; ++s) {
      ForPairs(vectors, [&](size_t pair, size_t i, size_t j) {
        Exact& product = want[s * stride + kCol + pair];
        product = Exact();
        for (size_t d = 0; d < dim; ++d) {
          product.Add(static_cast<double>(x[(s * vectors + i) * dim + d]) * x[(s * vectors + j) * dim + d]);
        }
      });
    }
    const std::vector<float> before = out;
    GetParam().dot_interaction(samples, vectors, dim, x.data(), stride, kCol, out.data());
    ExpectClose(out, want, name);
    for (size_t i = 0; i < out.size(); ++i) {
      if (i % stride < kCol || i % stride >= stride - 3) {
        ASSERT_EQ(out[i], before[i]) << name << " column " << i % stride;
      }
    }
  });
}

TEST_P(InteractionTest, BackwardIsItsDerivative) {
  const auto check = [&](size_t samples, size_t vectors, size_t dim, const std::string& name) {
    const size_t stride = Stride(vectors);
    const size_t count = samples * vectors * dim;
    const std::vector<float> x = Random(count), dout = Random(samples * stride), before = Random(count);
    std::vector<float> dx = before;
    std::vector<Exact> magnitudes = StartAt(before);
    for (size_t s = 0; s < samples; ++s) {
      ForPairs(vectors, [&](size_t pair, size_t i, size_t j) {
        const double gradient = dout[s * stride + kCol + pair];
        for (size_t d = 0; d < dim; ++d) {
          const size_t at_i = (s * vectors + i) * dim + d, at_j = (s * vectors + j) * dim + d;
          magnitudes[at_i].Add(gradient * x[at_j]);
          magnitudes[at_j].Add(gradient * x[at_i]);
        }
      });
    }
    const auto loss = [&](const std::vector<double>& at) {
      double sum = 0;
      for (size_t s = 0; s < samples; ++s) {
        ForPairs(vectors, [&](size_t pair, size_t i, size_t j) {
          for (size_t d = 0; d < dim; ++d) {
            sum += dout[s * stride + kCol + pair] * at[(s * vectors + i) * dim + d] * at[(s * vectors + j) * dim + d];
          }
        });
      }
      return sum;
    };
    GetParam().dot_interaction_backward(samples, vectors, dim, x.data(), stride, kCol, dout.data(), dx.data());
    CheckGradient(dx, before, x, loss, samples * vectors * vectors * dim, magnitudes, name);
  };
  ForVectors({0, 1, 2, 3, 8}, check);
}

TEST_P(InteractionTest, TakesSamplesThatNoSharedMemoryHolds) {
  constexpr size_t kSamples = 2, kVectors = 120, kDim = 110;
  const size_t stride = Stride(kVectors), count = kSamples * kVectors * kDim;
  const std::vector<float> x = Random(count), dout = Random(kSamples * stride);
  std::vector<float> out(kSamples * stride), dx(count, 0.0f);
  std::vector<Exact> want(kSamples * stride), want_dx(count);
  for (size_t s = 0; s < kSamples; ++s) {
    ForPairs(kVectors, [&](size_t pair, size_t i, size_t j) {
      const size_t at = s * stride + kCol + pair;
      for (size_t d = 0; d < kDim; ++d) {
        const size_t at_i = (s * kVectors + i) * kDim + d, at_j = (s * kVectors + j) * kDim + d;
        want[at].Add(static_cast<double>(x[at_i]) * x[at_j]);
        want_dx[at_i].Add(static_cast<double>(dout[at]) * x[at_j]);
        want_dx[at_j].Add(static_cast<double>(dout[at]) * x[at_i]);
      }
    });
  }
  GetParam().dot_interaction(kSamples, kVectors, kDim, x.data(), stride, kCol, out.data());
  ExpectClose(out, want, "products");
  GetParam().dot_interaction_backward(kSamples, kVectors, kDim, x.data(), stride, kCol, dout.data(), dx.data());
  ExpectClose(dx, want_dx, "gradients");
}

class MixtureTest : public EmbeddingTest {
 protected:
  // Calls check(samples, experts, dim, name); there is an expert at least.
  template <class Check>
  void ForMixtures(const Check& check) {
    for (const size_t samples : {0, 1, 3, 17}) {
      for (const size_t experts : {1, 2, 3, 5, 33}) {
        for (const size_t dim : {0, 1, 3, 8, 17, 65, 150}) {
          check(samples, experts, dim,
                std::to_string(samples) + "x" + std::to_string(experts) + "x" + std::to_string(dim));
        }
      }
    }
  }

  // In double: what a sample's logits become.
  static std::vector<double> Gates(const std::vector<double>& logits) {
    std::vector<double> gates;
    double sum = 0;
    for (const double logit : logits) sum += gates.emplace_back(std::exp(logit));
    for (double& gate : gates) gate /= sum;
    return gates;
  }
  static std::vector<double> RowOf(const std::vector<float>& x, size_t row, size_t cols) {
    return {x.begin() + row * cols, x.begin() + (row + 1) * cols};
  }
};

// Logits are below 4 in magnitude: differences of them below 8 are off by half a unit of 8, which e^x turns into 8
// roundings of it in relation to itself, beside 2 of its own. Numerator, sum and quotient have them, and a sum of E
// shares that is exact in double adds none.
constexpr int kGateRoundings = 2 * (8 + 2) + 3;

TEST_P(MixtureTest, WeighsExpertsByTheSoftmaxOfTheirGates) {
  ForMixtures([&](size_t samples, size_t experts, size_t dim, const std::string& name) {
    const std::vector<float> x = Random(experts * samples * dim), logits = Random(samples * experts, 4.0f);
    std::vector<float> gates = logits, out(samples * dim, std::nanf(""));
    std::vector<Exact> want_gates, want(samples * dim);
    for (size_t s = 0; s < samples; ++s) {
      const std::vector<double> exact = Gates(RowOf(logits, s, experts));
      for (size_t e = 0; e < experts; ++e) {
        want_gates.emplace_back().Add(exact[e], kGateRoundings);
        for (size_t d = 0; d < dim; ++d) {
          want[s * dim + d].Add(exact[e] * x[(e * samples + s) * dim + d], kGateRoundings + 1);
        }
      }
    }
    GetParam().mix_experts(samples, experts, dim, x.data(), gates.data(), out.data());
    ExpectClose(gates, want_gates, name + " gates");
    ExpectClose(out, want, name);
  });
}

TEST_P(MixtureTest, BackwardIsItsDerivativeAndAddsToTheExperts) {
  ForMixtures([&](size_t samples, size_t experts, size_t dim, const std::string& name) {
    const std::vector<float> x = Random(experts * samples * dim), logits = Random(samples * experts, 4.0f);
    const std::vector<float> dout = Random(samples * dim), before = Random(experts * samples * dim);
    std::vector<float> gates = logits, out(samples * dim), dgates(samples * experts, std::nanf("")), dx = before;
    GetParam().mix_experts(samples, experts, dim, x.data(), gates.data(), out.data());
    GetParam().mix_experts_backward(samples, experts, dim, x.data(), gates.data(), dout.data(), dgates.data(),
                                    dx.data());
    std::vector<Exact> want_dx = StartAt(before), want(samples * experts);
    for (size_t s = 0; s < samples; ++s) {
      const auto loss = [&](const std::vector<double>& at) {
        const std::vector<double> shares = Gates(at);
        double sum = 0;
        for (size_t e = 0; e < experts; ++e) {
          for (size_t d = 0; d < dim; ++d) {
            sum += shares[e] * dout[s * dim + d] * x[(e * samples + s) * dim + d];
          }
        }
        return sum;
      };
      std::vector<double> row = RowOf(logits, s, experts);
      const std::vector<double> exact = Gates(row);
      for (size_t e = 0; e < experts; ++e) {
        // Its terms are g_e p_e and g_e g_i p_i, sums of dim products each.
        for (size_t i = 0; i < experts; ++i) {
          for (size_t d = 0; d < dim; ++d) {
            const double product = static_cast<double>(dout[s * dim + d]) * x[(i * samples + s) * dim + d];
            const double factor = exact[e] * exact[i] + (i == e ? exact[e] : 0);
            want[s * experts + e].AddWithMagnitude(0, std::abs(factor * product), 2 * kGateRoundings + 5);
          }
        }
        // The third derivative of a sum of at most `dim` products below 1 that a softmax weighs is below dim.
        constexpr double kStep = 0x1p-12;
        want[s * experts + e].SetValue(CentralDifference(loss, row, e, kStep),
                                       static_cast<double>(dim) * (kStep * kStep / 6 + 0x1p-50 / kStep));
        for (size_t d = 0; d < dim; ++d) {
          want_dx[(e * samples + s) * dim + d].Add(exact[e] * dout[s * dim + d], kGateRoundings + 1);
        }
      }
    }
    ExpectClose(dgates, want, name + " gates");
    ExpectClose(dx, want_dx, name);
  });
}

LODESTONE_ON_EVERY_BACKEND(EmbeddingTest);
LODESTONE_ON_EVERY_BACKEND(InteractionTest);
LODESTONE_ON_EVERY_BACKEND(MixtureTest);

}  // namespace
}  // namespace lodestone::kernels
