// A gRPC slice over memory that belongs to another object: the slice keeps that object alive, and copies nothing.
//
// Thread safety: slices may be released on any thread, so the owner's destructor must not mind which one runs it.
#pragma once

#include <cstddef>
#include <utility>

#include "grpcpp/support/slice.h"

namespace lodestone {

// A slice of `size` bytes at `bytes`, which stay valid as long as `owner`, a counted reference such as a
// std::shared_ptr, exists. A reference that converts to a plain pointer and back (Leak and Release) costs no
// allocation. The bytes must not change any more; no reader of a slice writes to it.
template <typename Owner>
grpc::Slice OwnedSlice(const void* bytes, size_t size, Owner owner) {
  void* const at = const_cast<void*>(bytes);
  if constexpr (requires { Owner::Release(owner.Leak()); }) {
    using Pointer = decltype(owner.Leak());
    return grpc::Slice(
        at, size, [](void* leaked) { Owner::Release(static_cast<Pointer>(leaked)); }, owner.Leak());
  } else {
    return grpc::Slice(
        at, size, [](void* kept) { delete static_cast<Owner*>(kept); }, new Owner(std::move(owner)));
  }
}

}  // namespace lodestone
