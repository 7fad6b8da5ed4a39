#include "worker/data/idx.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/data/byte_source.h"
#include "worker/data/idx_dataset.h"
#include "worker/data/kept_samples.h"
#include "worker/data/label_index.h"
#include "worker/data/transform.h"

namespace lodestone::worker {
namespace {

constexpr uint64_t kPixelsMax = 1 << 26;  // Per image.
constexpr uint64_t kImagesPerProgress = 4096;
constexpr size_t kReadBytes = 1 << 20;  // At a time, at most.

// Counts each pixel's numbers, for its mean and deviation.
class PixelStatistics {
 public:
  // `known` as LoadIdx's.
  PixelStatistics(v1::Transform transform, uint32_t pixels, const v1::DataDescription* known)
      : transform_(transform),
        pixels_(pixels),
        known_(known),
        sums_size_(Standardizes(transform) && known == nullptr ? 2 * pixels : 0) {
    for (int byte = 0; byte < 256; ++byte) table_.push_back(TransformNumber(transform, byte));
  }

  // Memory that it takes when there are images, with that of the transform.
  uint64_t bytes() const { return sums_size_ * (sizeof(double) + sizeof(float)); }
  void Add(const uint8_t* image) {
    sums_.resize(sums_size_);
    for (size_t p = 0; 2 * p < sums_.size(); ++p) {
      const double x = table_[image[p]];
      sums_[2 * p] += x;
      sums_[2 * p + 1] += x * x;
    }
    ++count_;
  }

  // The transform, and its description.
  std::shared_ptr<const PixelTransform> Finish(v1::DataDescription* description) const {
    auto transform = std::make_shared<PixelTransform>();
    transform->pixels = pixels_;
    transform->table = table_;
    for (uint32_t p = 0; p < pixels_; ++p) {
      v1::DataDescription::NumericColumn& column = *description->add_numeric();
      column.set_name(absl::StrCat(p));
      column.set_transform(TransformName(transform_));
      column.set_deviation(1);
      if (!Standardizes(transform_)) continue;
      if (known_ != nullptr) {
        column.set_mean(known_->numeric(static_cast<int>(p)).mean());
        column.set_deviation(known_->numeric(static_cast<int>(p)).deviation());
      } else {
        Count(p, &column);
      }
      transform->means.push_back(static_cast<float>(column.mean()));
      transform->factors.push_back(static_cast<float>(1 / column.deviation()));
    }
    return transform;
  }

 private:
  void Count(uint32_t pixel, v1::DataDescription::NumericColumn* column) const {
    const auto count = static_cast<double>(count_);
    const double mean = sums_[2 * pixel] / count;
    const double variance = sums_[2 * pixel + 1] / count - mean * mean;
    column->set_mean(mean);
    // Sums of up to 2^32 bytes' squares are exact or nearly so: a constant pixel's variance is below the bound.
    if (variance > 1e-9 * (1 + mean * mean)) column->set_deviation(std::sqrt(variance));
  }

  const v1::Transform transform_;
  const uint32_t pixels_;
  const v1::DataDescription* const known_;
  const size_t sums_size_;  // 0 unless they are needed.
  std::vector<float> table_;
  std::vector<double> sums_;  // Of each pixel: numbers and their squares.
  uint64_t count_ = 0;
};

absl::Status Truncated(const ByteSource& source, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(source.path(), ": the file ends within ", what));
}

// Reads the header of an IDX file of unsigned bytes; gives its dimensions.
absl::StatusOr<std::vector<uint32_t>> ReadHeader(ByteSource* source, bool labels) {
  uint8_t bytes[4];
  LODESTONE_ASSIGN_OR_RETURN(size_t size, source->Read(reinterpret_cast<char*>(bytes), 4));
  if (size < 4) return Truncated(*source, "its magic number");
  const bool rank_fits = labels ? bytes[3] == 1 : bytes[3] >= 2 && bytes[3] <= 4;
  if (bytes[0] != 0 || bytes[1] != 0 || bytes[2] != 8 || !rank_fits) {
    return absl::InvalidArgumentError(
        absl::StrCat(source->path(), ": the magic number is 0x",
                     absl::Hex(bytes[0] << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3], absl::kZeroPad8),
                     " and not that of IDX ", labels ? "labels, 0x00000801" : "images of bytes, 0x00000803"));
  }
  std::vector<uint32_t> dimensions;
  for (int i = bytes[3]; i > 0; --i) {
    LODESTONE_ASSIGN_OR_RETURN(size, source->Read(reinterpret_cast<char*>(bytes), 4));
    if (size < 4) return Truncated(*source, "its header");
    dimensions.push_back(uint32_t{bytes[0]} << 24 | bytes[1] << 16 | bytes[2] << 8 | bytes[3]);
  }
  return dimensions;
}

absl::Status CheckEnd(ByteSource* source) {
  char extra;
  LODESTONE_ASSIGN_OR_RETURN(const size_t size, source->Read(&extra, 1));
  if (size == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(source->path(), ": more bytes than its header says"));
}

// An image file and its label file, side by side.
struct IdxPair {
  std::unique_ptr<ByteSource> images;
  std::unique_ptr<ByteSource> labels;  // Null: there is none.
  uint64_t count = 0;
  uint32_t pixels = 0;
};

// `labels`: empty if there are none.
absl::StatusOr<IdxPair> Open(const std::string& images, const std::string& labels) {
  IdxPair pair;
  LODESTONE_ASSIGN_OR_RETURN(pair.images, ByteSource::Open(images));
  if (!labels.empty()) {
    LODESTONE_ASSIGN_OR_RETURN(pair.labels, ByteSource::Open(labels));
  }
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<uint32_t> dimensions, ReadHeader(pair.images.get(), false));
  uint64_t pixels = 1;
  for (size_t i = 1; i < dimensions.size(); ++i) pixels = std::min(pixels, kPixelsMax + 1) * dimensions[i];
  if (pixels == 0 || pixels > kPixelsMax) {
    return absl::InvalidArgumentError(absl::StrCat(images, ": images have 1 to ", kPixelsMax, " pixels, not ", pixels));
  }
  if (pair.labels != nullptr) {
    LODESTONE_ASSIGN_OR_RETURN(const std::vector<uint32_t> label_dimensions, ReadHeader(pair.labels.get(), true));
    if (dimensions[0] != label_dimensions[0]) {
      return absl::InvalidArgumentError(absl::StrCat(images, " has ", dimensions[0], " images, but its label file ",
                                                     labels, " has ", label_dimensions[0], " labels"));
    }
  }
  pair.count = dimensions[0];
  pair.pixels = static_cast<uint32_t>(pixels);
  return pair;
}

using Sink = absl::FunctionRef<absl::Status(const uint8_t* image, uint8_t label, const IdxPair& pair, uint64_t index)>;

// Reads an image into *image, which grows with what comes, whatever the header says. False if the file ends before.
absl::StatusOr<bool> ReadImage(ByteSource* source, size_t pixels, std::vector<uint8_t>* image) {
  for (size_t have = 0; have < pixels;) {
    const size_t wanted = std::min(pixels - have, kReadBytes);
    if (image->size() < have + wanted) image->resize(have + wanted);
    LODESTONE_ASSIGN_OR_RETURN(const size_t size, source->Read(reinterpret_cast<char*>(image->data()) + have, wanted));
    if (size < wanted) return false;
    have += size;
  }
  return true;
}

// Reads image `i`, the next, and its label; without labels 0.
absl::Status ReadSample(IdxPair* pair, uint64_t i, std::vector<uint8_t>* image, uint8_t* label) {
  LODESTONE_ASSIGN_OR_RETURN(const bool whole, ReadImage(pair->images.get(), pair->pixels, image));
  if (!whole) return Truncated(*pair->images, absl::StrCat("image ", i, " of ", pair->count));
  *label = 0;
  if (pair->labels == nullptr) return absl::OkStatus();
  LODESTONE_ASSIGN_OR_RETURN(const size_t size, pair->labels->Read(reinterpret_cast<char*>(label), 1));
  return size == 1 ? absl::OkStatus() : Truncated(*pair->labels, absl::StrCat("label ", i, " of ", pair->count));
}

absl::Status CheckEnds(IdxPair* pair) {
  LODESTONE_RETURN_IF_ERROR(CheckEnd(pair->images.get()));
  return pair->labels == nullptr ? absl::OkStatus() : CheckEnd(pair->labels.get());
}

absl::Status ReadPair(IdxPair* pair, const LoadProgress& progress, Sink sink) {
  std::vector<uint8_t> image;
  for (uint64_t i = 0; i < pair->count; ++i) {
    if (i % kImagesPerProgress == 0) progress.At(pair->images->file_offset());
    uint8_t label = 0;
    LODESTONE_RETURN_IF_ERROR(ReadSample(pair, i, &image, &label));
    LODESTONE_RETURN_IF_ERROR(sink(image.data(), label, *pair, i));
  }
  return CheckEnds(pair);
}

absl::Status AtImage(const IdxPair& pair, uint64_t index, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(pair.labels->path(), ": label ", index, ": ", message));
}

// INVALID_ARGUMENT unless the images are such as the model was trained on.
absl::Status CheckKnown(const v1::DataDescription& known, const std::string& file, uint32_t pixels,
                        v1::Transform transform) {
  if (known.format() != "idx" || known.numeric_size() != static_cast<int>(pixels)) {
    return absl::InvalidArgumentError(absl::StrCat(file, " has images of ", pixels,
                                                   " pixels, and the model was trained on ", known.format(),
                                                   " data with ", known.numeric_size(), " numbers"));
  }
  if (known.numeric(0).transform() == TransformName(transform)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(file, ": the model was trained with data.numeric: ", known.numeric(0).transform(),
                   ", and the configuration says ", TransformName(transform), "; set it as it was"));
}

// The samples of a pair, one after another.
class ImageReader final : public SampleReader {
 public:
  ImageReader(std::shared_ptr<const PixelTransform> transform, IdxPair pair)
      : transform_(std::move(transform)), pair_(std::move(pair)) {}

  absl::StatusOr<LineOutcome> Next(ParsedLine* parsed, LineError*) override {
    if (next_ == pair_.count) {
      LODESTONE_RETURN_IF_ERROR(CheckEnds(&pair_));
      return LineOutcome::kBlank;
    }
    uint8_t label = 0;
    LODESTONE_RETURN_IF_ERROR(ReadSample(&pair_, next_++, &image_, &label));
    label_ = absl::StrCat(label);
    parsed->label = label_;
    parsed->numeric.resize(pair_.pixels);
    transform_->Apply(image_.data(), parsed->numeric.data());
    parsed->keys.clear();
    parsed->values.clear();
    return LineOutcome::kSample;
  }
  uint64_t position() const override { return next_ - 1; }
  std::string PlaceOf(uint64_t position, const LineError&) const override {
    return absl::StrCat(pair_.images->path(), ": image ", position);
  }
  uint64_t file_offset() const override { return pair_.images->file_offset(); }
  uint64_t bytes_parsed() const override { return next_ * pair_.pixels; }

 private:
  const std::shared_ptr<const PixelTransform> transform_;
  IdxPair pair_;
  uint64_t next_ = 0;
  std::vector<uint8_t> image_;
  std::string label_;
};

// Reads the images of files.
class Reader {
 public:
  Reader(uint32_t pixels, KeptSamples<IdxDataset>* kept, LoadProgress* progress)
      : pixels_(pixels), kept_(*kept), progress_(*progress) {}

  // Calls `sink` with each image. Each `share`-th is kept, about.
  absl::Status Read(const IdxFiles& files, uint64_t share, Sink sink) {
    for (size_t f = 0; f < files.images.size(); ++f) {
      LODESTONE_ASSIGN_OR_RETURN(IdxPair pair, Open(files.images[f], files.labels[f]));
      if (pair.pixels != pixels_) {
        return absl::InvalidArgumentError(absl::StrCat(files.images[f], ": ", pair.pixels, " pixels per image, but ",
                                                       pixels_, " in the first training file"));
      }
      LODESTONE_RETURN_IF_ERROR(kept_.CheckRoom(pair.count / share * (pixels_ + sizeof(float))));
      LODESTONE_RETURN_IF_ERROR(ReadPair(&pair, progress_, sink));
      progress_.FileDone();
    }
    return absl::OkStatus();
  }

 private:
  const uint32_t pixels_;
  KeptSamples<IdxDataset>& kept_;
  LoadProgress& progress_;
};

}  // namespace

void PixelTransform::Apply(const uint8_t* image, float* to) const {
  for (uint32_t p = 0; p < pixels; ++p) to[p] = table[image[p]];
  if (means.empty()) return;
  for (uint32_t p = 0; p < pixels; ++p) to[p] = (to[p] - means[p]) * factors[p];
}

absl::StatusOr<std::shared_ptr<const PixelTransform>> KnownPixels(const v1::DataConfig& config,
                                                                  const v1::DataDescription& known) {
  if (known.format() != "idx" || known.numeric_size() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model was trained on ", known.format(), " data, and not on images"));
  }
  v1::DataDescription same;
  return PixelStatistics(ResolveTransform(config.numeric(), v1::UNIT), static_cast<uint32_t>(known.numeric_size()),
                         &known)
      .Finish(&same);
}

absl::StatusOr<std::shared_ptr<const PixelTransform>> RawPixels(const std::string& images) {
  LODESTONE_ASSIGN_OR_RETURN(const IdxPair pair, Open(images, ""));
  auto raw = std::make_shared<PixelTransform>();
  raw->pixels = pair.pixels;
  for (int byte = 0; byte < 256; ++byte) raw->table.push_back(static_cast<float>(byte));
  return raw;
}

absl::StatusOr<std::unique_ptr<SampleReader>> OpenImages(std::shared_ptr<const PixelTransform> transform,
                                                         const std::string& images, const std::string& labels) {
  LODESTONE_ASSIGN_OR_RETURN(IdxPair pair, Open(images, labels));
  if (pair.pixels != transform->pixels) {
    return absl::InvalidArgumentError(absl::StrCat(images, ": ", pair.pixels, " pixels per image, and the model was ",
                                                   "trained on images of ", transform->pixels));
  }
  return std::unique_ptr<SampleReader>(new ImageReader(std::move(transform), std::move(pair)));
}

absl::StatusOr<LoadedData> LoadIdx(const v1::DataConfig& config, const IdxFiles& train_files,
                                   const IdxFiles& test_files, LabelKind kind, Partition partition,
                                   const LoadProgress::Callback& callback, const v1::DataDescription* known,
                                   const SampleLimits& limits) {
  std::vector<std::string> all = train_files.images;
  all.insert(all.end(), test_files.images.begin(), test_files.images.end());
  LoadProgress progress(callback, all);
  LODESTONE_ASSIGN_OR_RETURN(LabelIndex labels, LabelIndex::Create(kind, config, known));
  LODESTONE_ASSIGN_OR_RETURN(const IdxPair first, Open(train_files.images.at(0), train_files.labels.at(0)));
  const v1::Transform pixel_transform = ResolveTransform(config.numeric(), v1::UNIT);
  if (known != nullptr) {
    LODESTONE_RETURN_IF_ERROR(CheckKnown(*known, train_files.images.at(0), first.pixels, pixel_transform));
  }
  PixelStatistics statistics(pixel_transform, first.pixels, known);
  KeptSamples<IdxDataset> kept(config, limits, statistics.bytes(),
                               [&] { return std::make_unique<IdxDataset>(first.pixels); });
  Reader reader(first.pixels, &kept, &progress);

  uint64_t index = 0, trained = 0;  // Over all files; of those, that are not held out.
  LODESTONE_RETURN_IF_ERROR(
      reader.Read(train_files, partition.count,
                  [&](const uint8_t* image, uint8_t byte, const IdxPair& pair, uint64_t i) -> absl::Status {
                    float label = 0;
                    std::string error;
                    const bool held_out = partition.HoldsOut(index++);
                    if (!labels.Add(absl::StrCat(byte), &label, &error, held_out)) return AtImage(pair, i, error);
                    if (held_out) return limits.with_test ? kept.AddTest(label, image) : absl::OkStatus();
                    statistics.Add(image);
                    return kept.AddTrain(partition.Has(trained++), label, image);
                  }));
  if (index == 0) {
    return absl::InvalidArgumentError(absl::StrCat(train_files.images[0], ": no image in the training files"));
  }
  LODESTONE_RETURN_IF_ERROR(CheckHeldOut(partition, index, trained));
  labels.Finish();

  LoadedData data;
  data.schema.numeric_count = first.pixels;
  labels.FillSchema(&data.schema);
  data.schema.description.set_format("idx");
  const auto transform = statistics.Finish(&data.schema.description);
  labels.Describe(&data.schema.description);
  LODESTONE_RETURN_IF_ERROR(reader.Read(
      test_files, 1, [&](const uint8_t* image, uint8_t byte, const IdxPair& pair, uint64_t i) -> absl::Status {
        float label = 0;
        std::string error;
        if (!labels.Find(absl::StrCat(byte), &label, &error)) return AtImage(pair, i, error);
        return kept.AddTest(label, image);
      }));
  const bool own_test = !test_files.images.empty();
  LODESTONE_RETURN_IF_ERROR(kept.Give(
      [&](IdxDataset* images, bool test) { return images->Finish(test && own_test ? nullptr : &labels, transform); },
      &data));
  return data;
}

}  // namespace lodestone::worker
