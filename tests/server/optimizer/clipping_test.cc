#include "server/optimizer/clipping.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/common/wire/byte_runs.h"
#include "tests/server/optimizer/methods.h"

namespace lodestone::server {
namespace {

const uint8_t* BytesOf(const std::vector<float>& values) { return reinterpret_cast<const uint8_t*>(values.data()); }

double NormOf(const std::vector<float>& gradient, float clip_value) {
  return GradientNorm(ByteView(BytesOf(gradient), gradient.size() * sizeof(float)), clip_value);
}

TEST(GradientNorm, IsTheEuclideanNorm) {
  EXPECT_EQ(GradientNorm({}, 0), 0.0);
  EXPECT_EQ(NormOf({3.0f, -4.0f}, 0), 5.0);
  for (size_t n = 0; n <= 67; ++n) {
    const std::vector<float> gradient = RandomFloats(n, 4);
    double sum = 0;
    for (float g : gradient) sum += double{g} * g;
    // Sums of n terms in another order, then a root.
    EXPECT_NEAR(NormOf(gradient, 0), std::sqrt(sum), (n + 1) * 0x1.0p-52 * (1 + std::sqrt(sum))) << n;
  }
}

TEST(GradientNorm, ClampsElementsFirst) {
  EXPECT_EQ(NormOf({30.0f, -40.0f, 0.0f}, 2.0f), std::sqrt(8.0));
  EXPECT_EQ(NormOf({3.0f, -40.0f}, 4.0f), 5.0);
}

TEST(GradientNorm, DoesNotOverflow) {
  const float huge = std::numeric_limits<float>::max();
  EXPECT_EQ(NormOf({huge, huge, huge, huge}, 0), 2.0 * huge);
}

TEST(GradientNorm, IsTheSameBitsInWhateverRunsTheGradientLies) {
  const std::vector<float> gradient = RandomFloats(67, 6);
  const double expected = NormOf(gradient, 0.5f);
  for (size_t run_bytes = 1; run_bytes <= gradient.size() * sizeof(float); ++run_bytes) {
    const ByteRuns runs(BytesOf(gradient), gradient.size() * sizeof(float), run_bytes);
    ASSERT_EQ(GradientNorm(runs.view(), 0.5f), expected) << run_bytes;
  }
}

TEST(FirstNonFinite, FindsNanAndInfinityAtEveryPosition) {
  const float infinity = std::numeric_limits<float>::infinity();
  float signalling;
  const uint32_t bits = 0xff800001u;
  std::memcpy(&signalling, &bits, sizeof(bits));
  for (float bad : {infinity, -infinity, std::nanf(""), -std::nanf(""), signalling}) {
    for (size_t n : {1, 63, 64, 65, 130, 200}) {
      for (size_t at = 0; at < n; ++at) {
        std::vector<float> values = RandomFloats(n, 5);
        std::memcpy(&values[at], &bad, sizeof(bad));
        ASSERT_EQ(FirstNonFinite(BytesOf(values), n), at) << "of " << n;
        values.back() = infinity;  // A later one does not matter.
        ASSERT_EQ(FirstNonFinite(BytesOf(values), n), at) << "of " << n;
      }
    }
  }
}

TEST(FirstNonFinite, AcceptsEveryFiniteValueAtEveryAlignment) {
  const float limit = std::numeric_limits<float>::max();
  const float tiny = std::numeric_limits<float>::denorm_min();
  const std::vector<float> corner = {0.0f, -0.0f, limit, -limit, tiny, -tiny, 1.0f};
  for (size_t n = 0; n <= 200; ++n) {
    for (size_t offset = 0; offset < 4; ++offset) {
      std::vector<uint8_t> bytes(offset + n * sizeof(float));
      for (size_t i = 0; i < n; ++i) {
        std::memcpy(bytes.data() + offset + i * sizeof(float), &corner[i % corner.size()], sizeof(float));
      }
      ASSERT_EQ(FirstNonFinite(bytes.data() + offset, n), n);
    }
  }
}

}  // namespace
}  // namespace lodestone::server
