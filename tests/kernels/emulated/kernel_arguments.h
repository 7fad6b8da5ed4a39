// The pointers among a kernel's arguments, and in the structs among them.
#pragma once

#include <cstddef>
#include <type_traits>

namespace emulated {

// What any field can be initialized from.
struct AnyField {
  template <typename T>
  operator T() const;
};

// The number of fields of an aggregate.
template <typename T, typename... Fields>
constexpr size_t FieldCount(Fields... fields) {
  if constexpr (requires { T{fields..., AnyField()}; }) {
    return FieldCount<T>(fields..., AnyField());
  } else {
    return sizeof...(fields);
  }
}

// Calls call(pointer) for each.
template <typename T, typename Call>
void ForEachPointer(const T& value, const Call& call) {
  if constexpr (std::is_pointer_v<T>) {
    call(value);
  } else if constexpr (std::is_class_v<T> && !std::is_empty_v<T>) {
    static_assert(std::is_aggregate_v<T>, "its fields cannot be found");
    constexpr size_t kFields = FieldCount<T>();
    static_assert(kFields <= 10, "add a case");
    const auto each = [&call](const auto&... fields) { (ForEachPointer(fields, call), ...); };
    if constexpr (kFields == 1) {
      const auto& [a] = value;
      each(a);
    } else if constexpr (kFields == 2) {
      const auto& [a, b] = value;
      each(a, b);
    } else if constexpr (kFields == 3) {
      const auto& [a, b, c] = value;
      each(a, b, c);
    } else if constexpr (kFields == 4) {
      const auto& [a, b, c, d] = value;
      each(a, b, c, d);
    } else if constexpr (kFields == 5) {
      const auto& [a, b, c, d, e] = value;
      each(a, b, c, d, e);
    } else if constexpr (kFields == 6) {
      const auto& [a, b, c, d, e, f] = value;
      each(a, b, c, d, e, f);
    } else if constexpr (kFields == 7) {
      const auto& [a, b, c, d, e, f, g] = value;
      each(a, b, c, d, e, f, g);
    } else if constexpr (kFields == 8) {
      const auto& [a, b, c, d, e, f, g, h] = value;
      each(a, b, c, d, e, f, g, h);
    } else if constexpr (kFields == 9) {
      const auto& [a, b, c, d, e, f, g, h, i] = value;
      each(a, b, c, d, e, f, g, h, i);
    } else if constexpr (kFields == 10) {
      const auto& [a, b, c, d, e, f, g, h, i, j] = value;
      each(a, b, c, d, e, f, g, h, i, j);
    }
  }
}

}  // namespace emulated
