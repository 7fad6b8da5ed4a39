#include "server/optimizer/arithmetic.h"

#include <gnu/libc-version.h>

#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "hwy/targets.h"
#include "proto/table.pb.h"
#include "server/optimizer/initializer.h"
#include "server/optimizer/optimizer.h"

namespace lodestone::server {
namespace {

constexpr size_t kFingerprintValues = 257;  // No multiple of a vector's length.
constexpr uint64_t kFingerprintSeed = 41;
constexpr int kFingerprintSteps = 3;

uint64_t HashOf(const std::vector<float>& values, uint64_t salt) {
  return StableHash({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}, salt);
}

// Calls `use` with a message of each kind of the configuration, as it is by default.
template <typename Config, typename Use>
void ForEachKind(const Use& use) {
  const google::protobuf::OneofDescriptor* const kinds = Config::descriptor()->FindOneofByName("kind");
  for (int i = 0; i < kinds->field_count(); ++i) {
    Config config;
    config.GetReflection()->MutableMessage(&config, kinds->field(i));
    use(config);
  }
}

std::vector<float> ValuesOf(const v1::Initializer& config, uint64_t stream) {
  std::vector<float> values(kFingerprintValues);
  InitializeValues(config, kFingerprintSeed, stream, 0, values.size(), /*fan_in=*/64, /*fan_out=*/32, values.data());
  return values;
}

uint64_t HashOfSteps(const v1::Optimizer& config, uint64_t salt) {
  const auto optimizer = Optimizer::Create(config);
  LODESTONE_CHECK(optimizer.ok());
  v1::Initializer normal;
  normal.mutable_normal()->set_stddev(1);
  std::vector<float> values = ValuesOf(normal, 0);
  std::vector<float> state((*optimizer)->state_layout().FloatsFor(values.size()));
  (*optimizer)->InitializeState(state.data(), values.size());
  Optimizer::Step step;
  step.learning_rate = config.learning_rate();
  step.weight_decay = 0.01f;
  for (int i = 1; i <= kFingerprintSteps; ++i) {
    const std::vector<float> gradient = ValuesOf(normal, i);
    (*optimizer)
        ->Update(step, {values.size(), 0, values.size()}, reinterpret_cast<const uint8_t*>(gradient.data()),
                 values.data(), state.data(), values.data(), state.data());
  }
  return HashOf(state, HashOf(values, salt));
}

uint64_t ComputeFingerprint() {
  uint64_t hash = 0;
  ForEachKind<v1::Initializer>([&](const v1::Initializer& config) { hash = HashOf(ValuesOf(config, 7), hash); });
  ForEachKind<v1::Optimizer>([&](const v1::Optimizer& config) { hash = HashOfSteps(config, hash); });
  return hash | 1;
}

}  // namespace

uint64_t ArithmeticFingerprint() {
  static const uint64_t fingerprint = ComputeFingerprint();
  return fingerprint;
}

std::string ArithmeticName() {
  const int64_t targets = hwy::SupportedTargets();
  return absl::StrCat(hwy::TargetName(targets & -targets), ", glibc ",
                      gnu_get_libc_version());  // The best comes first.
}

}  // namespace lodestone::server
