#include "common/telemetry/figures.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/admin.pb.h"

namespace lodestone {
namespace {

using google::protobuf::FieldDescriptor;

// A table whose figures are multiples of `factor`.
v1::TableStatus Table(const std::string& name, uint64_t factor) {
  v1::TableStatus table;
  table.set_name(name);
  for (const Figure& figure : FiguresOf(*table.GetDescriptor())) {
    table.GetReflection()->SetUInt64(&table, figure.field, factor * static_cast<uint64_t>(figure.field->number()));
  }
  return table;
}

TEST(Figures, OfATableAreAllItsNumbers) {
  const auto& type = *v1::TableStatus::descriptor();
  size_t numbers = 0;
  for (int i = 0; i < type.field_count(); ++i) numbers += type.field(i)->cpp_type() == FieldDescriptor::CPPTYPE_UINT64;
  EXPECT_EQ(FiguresOf(type).size(), numbers);
  EXPECT_TRUE(FiguresOf(*v1::WaitStatus::descriptor()).empty());
}

TEST(Figures, AreMergedByFieldAsTheirOptionSaysAndNothingElseChanges) {
  v1::TableStatus all = Table("here", 3);
  MergeFigures(Table("there", 2), &all);
  EXPECT_EQ(all.name(), "here");
  EXPECT_EQ(all.rows(), 5u * v1::TableStatus::kRowsFieldNumber);
  EXPECT_EQ(all.version_max(), 3u * v1::TableStatus::kVersionMaxFieldNumber);
  for (const Figure& figure : FiguresOf(*all.GetDescriptor())) {
    const bool sum = figure.options->merge() == v1::Figure::SUM;
    EXPECT_EQ(figure.Of(all), (sum ? 5u : 3u) * static_cast<uint64_t>(figure.field->number())) << figure.field->name();
  }
}

TEST(Figures, AreSetByName) {
  v1::TableStatus table = Table("t", 1);
  SetFigure("not_admitted", 77, &table);
  EXPECT_EQ(table.not_admitted(), 77u);
  EXPECT_EQ(table.evicted(), uint64_t{v1::TableStatus::kEvictedFieldNumber});
}

TEST(Figures, KnowTheirLimits) {
  const v1::TableStatus table = Table("t", 1);
  for (const Figure& figure : FiguresOf(*table.GetDescriptor())) {
    EXPECT_EQ(figure.LimitOf(table), figure.field->name() == "bytes" ? table.bytes_max() : 0u) << figure.field->name();
  }
}

TEST(Figures, WithAColumnAreDescribedAsJson) {
  const nlohmann::json figures = nlohmann::json::parse(FiguresJson(*v1::TableStatus::descriptor()));
  ASSERT_GT(figures.size(), 5u);
  for (const nlohmann::json& figure : figures) {
    EXPECT_NE(v1::TableStatus::descriptor()->FindFieldByName(figure.at("field")), nullptr) << figure;
    EXPECT_NE(figure.at("label"), "") << figure;
    EXPECT_EQ(figure.at("bytes"), figure.at("field") == "bytes") << figure;
    EXPECT_EQ(figure.at("limit"), figure.at("field") == "bytes" ? "bytes_max" : "") << figure;
  }
}

}  // namespace
}  // namespace lodestone
