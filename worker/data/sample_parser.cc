#include "worker/data/sample_parser.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/data/batch_builder.h"
#include "worker/data/criteo.h"
#include "worker/data/csv_layout.h"
#include "worker/data/known_columns.h"
#include "worker/data/libsvm.h"

namespace lodestone::worker {
namespace {

constexpr char kRequest[] = "the request";  // What stands for the file's name in errors.

absl::Status Unfit(const v1::ModelDescription& model, absl::string_view what, absl::string_view instead) {
  return absl::InvalidArgumentError(
      absl::StrCat("the model was trained on ", model.data().format(), " data and takes no ", what, "; ", instead));
}

// What to give a model instead.
absl::string_view FitFor(v1::DataConfig::Format format) {
  switch (format) {
    case v1::DataConfig::IDX:
      return "give images, a byte a pixel";
    case v1::DataConfig::CSV:
      return "give lines with a header, or columns by name";
    case v1::DataConfig::PARQUET:
      return "give columns by name";
    case v1::DataConfig::LIBSVM:
    case v1::DataConfig::LIBFFM:
    case v1::DataConfig::CRITEO:
    case v1::DataConfig::CRITEO_NPY:
      return "give lines";
    default:
      return "train one on files";
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<SampleParser>> SampleParser::OfLayout(std::shared_ptr<const v1::ModelDescription> model,
                                                                     CsvLayout layout) {
  LODESTONE_RETURN_IF_ERROR(ArrangeAsKnown(model->data(), kRequest, &layout));
  std::vector<v1::Transform> transforms;
  for (const CsvLayout::NumericColumn& column : layout.numeric) transforms.push_back(column.transform);
  std::unique_ptr<SampleParser> parser(new SampleParser(std::move(model)));
  parser->standardizer_.emplace(transforms, &parser->model_->data());
  parser->columns_ = std::make_unique<CsvParser>(std::move(layout));
  return parser;
}

absl::StatusOr<std::unique_ptr<SampleParser>> SampleParser::OfLines(const v1::DataConfig& config,
                                                                    std::shared_ptr<const v1::ModelDescription> model,
                                                                    absl::string_view first) {
  constexpr bool kLabelOptional = true;
  if (config.format() == v1::DataConfig::CSV) {
    LODESTONE_ASSIGN_OR_RETURN(
        CsvLayout layout, FindCsvLayout(config.csv(), ResolveTransform(config.numeric(), v1::NONE), kRequest, first,
                                        std::nullopt, kLabelOptional));
    return OfLayout(std::move(model), std::move(layout));
  }
  std::unique_ptr<SampleParser> parser(new SampleParser(std::move(model)));
  const bool fields = config.format() == v1::DataConfig::LIBFFM;
  if (fields || config.format() == v1::DataConfig::LIBSVM) {
    const v1::Transform transform = ResolveTransform(config.numeric(), v1::NONE);
    parser->lines_ = std::make_unique<LibsvmParser>(transform, kLabelOptional, fields);
  } else if (config.format() == v1::DataConfig::CRITEO || config.format() == v1::DataConfig::CRITEO_NPY) {
    const bool npy = config.format() == v1::DataConfig::CRITEO_NPY;
    const v1::Transform transform = ResolveTransform(config.numeric(), npy ? v1::NONE : v1::LOG);
    parser->lines_ = std::make_unique<CriteoParser>(
        transform, kLabelOptional, npy ? CriteoParser::Categories::kNumbers : CriteoParser::Categories::kTexts);
    const std::vector<v1::Transform> transforms(kCriteoNumbers, transform);
    parser->standardizer_.emplace(transforms, &parser->model_->data());
  } else {
    return Unfit(*parser->model_, "lines", FitFor(config.format()));
  }
  return parser;
}

absl::StatusOr<std::unique_ptr<SampleParser>> SampleParser::OfColumns(const v1::DataConfig& config,
                                                                      std::shared_ptr<const v1::ModelDescription> model,
                                                                      std::vector<std::string> names) {
  if (config.format() != v1::DataConfig::CSV && config.format() != v1::DataConfig::PARQUET) {
    return Unfit(*model, "columns by name", FitFor(config.format()));
  }
  LODESTONE_ASSIGN_OR_RETURN(CsvLayout layout,
                             FindColumnLayout(config.csv(), ResolveTransform(config.numeric(), v1::NONE), kRequest,
                                              std::move(names), /*label_optional=*/true));
  return OfLayout(std::move(model), std::move(layout));
}

absl::StatusOr<std::unique_ptr<SampleParser>> SampleParser::OfImages(
    const v1::DataConfig& config, std::shared_ptr<const v1::ModelDescription> model) {
  if (config.format() != v1::DataConfig::IDX) return Unfit(*model, "images", FitFor(config.format()));
  std::unique_ptr<SampleParser> parser(new SampleParser(std::move(model)));
  LODESTONE_ASSIGN_OR_RETURN(parser->pixels_, KnownPixels(config, parser->model_->data()));
  return parser;
}

absl::Status SampleParser::AddLine(absl::string_view line, Batch* batch) {
  LineParser* const parser = columns_ != nullptr ? columns_.get() : lines_.get();
  LODESTONE_CHECK(parser != nullptr);
  LineError error;
  const LineOutcome outcome = parser->Parse(line, &parsed_, &error);
  if (outcome == LineOutcome::kBlank) return absl::InvalidArgumentError("the line is empty");
  if (outcome == LineOutcome::kMalformed) {
    return absl::InvalidArgumentError(absl::StrCat("byte ", error.column, ": ", error.message));
  }
  Append(batch);
  return absl::OkStatus();
}

absl::Status SampleParser::AddFields(const std::vector<CsvField>& fields, Batch* batch) {
  LODESTONE_CHECK(columns_ != nullptr);
  LineError error;
  if (columns_->ParseFields(fields, &parsed_, &error) != LineOutcome::kSample) {
    return absl::InvalidArgumentError(error.message);
  }
  Append(batch);
  return absl::OkStatus();
}

absl::Status SampleParser::AddImage(absl::string_view pixels, Batch* batch) {
  LODESTONE_CHECK(pixels_ != nullptr);
  if (pixels.size() != pixels_->pixels) {
    return absl::InvalidArgumentError(absl::StrCat(pixels.size(), " bytes instead of the ", pixels_->pixels,
                                                   " pixels of the images that the model was trained on"));
  }
  parsed_.numeric.resize(pixels_->pixels);
  pixels_->Apply(reinterpret_cast<const uint8_t*>(pixels.data()), parsed_.numeric.data());
  Append(batch);
  return absl::OkStatus();
}

void SampleParser::Append(Batch* batch) {
  if (standardizer_.has_value() && standardizer_->active()) {
    standardizer_->Apply({parsed_.numeric.data(), parsed_.numeric.size()});
  }
  AppendSample(0, parsed_, batch);
}

}  // namespace lodestone::worker
