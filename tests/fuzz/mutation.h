// Good input that the fuzzer spoils: what it gives is not the input, but what to change of it, so that it gets past
// checksums and lengths to the checks behind them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lodestone {

// Takes bytes off the front of what the fuzzer gives; zeros when there are none left.
class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool empty() const { return size_ == 0; }
  uint8_t Byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  // Below `end`, which is above 0.
  size_t Below(size_t end) {
    const size_t high = end > 256 ? Byte() : 0;
    return (high << 8 | Byte()) % end;
  }
  std::string Rest() {
    std::string rest(reinterpret_cast<const char*>(data_), size_);
    size_ = 0;
    return rest;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

// A message and the bytes that come with it.
struct FuzzPiece {
  std::string message;
  std::string payload;
};

// Spoils `pieces` as `input` says, to its end: bytes, lengths, order.
inline void Spoil(FuzzInput* input, std::vector<FuzzPiece>* pieces) {
  while (!input->empty() && !pieces->empty()) {
    const size_t at = input->Below(pieces->size());
    FuzzPiece& piece = (*pieces)[at];
    switch (input->Byte() % 9) {
      case 0:
      case 1:
        if (!piece.message.empty())
          piece.message[input->Below(piece.message.size())] ^= static_cast<char>(input->Byte());
        break;
      case 2:
        if (!piece.message.empty())
          piece.message[input->Below(piece.message.size())] = static_cast<char>(input->Byte());
        break;
      case 3:
        if (!piece.payload.empty())
          piece.payload[input->Below(piece.payload.size())] ^= static_cast<char>(input->Byte());
        break;
      case 4:
        piece.payload.resize(input->Below(piece.payload.size() + 1));
        break;
      case 5:
        piece.payload.append(input->Below(64), static_cast<char>(input->Byte()));
        break;
      case 6:
        pieces->erase(pieces->begin() + static_cast<ptrdiff_t>(at));
        break;
      case 7:
        if (pieces->size() < 100) pieces->insert(pieces->begin() + static_cast<ptrdiff_t>(at), FuzzPiece(piece));
        break;
      case 8:
        std::swap(piece, (*pieces)[input->Below(pieces->size())]);
        break;
    }
  }
}

}  // namespace lodestone
