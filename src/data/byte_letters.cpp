#include "byte_letters.h"

namespace lancet::data {
namespace {

bool is_visible(int byte) { return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE; }

struct Letters {
  std::array<std::uint16_t, 256> of_byte{};
  std::array<std::int16_t, 0x144> byte_of{};  // 0x100 + 68 characters; -1: no byte
  std::array<std::uint8_t, 256> order{};

  Letters() {
    byte_of.fill(-1);
    std::size_t placed = 0;
    int next = 0x100;
    for (const bool visible : {true, false})
      for (int byte = 0; byte < 256; ++byte) {
        if (is_visible(byte) != visible) continue;
        const int letter = visible ? byte : next++;
        of_byte[static_cast<std::size_t>(byte)] = static_cast<std::uint16_t>(letter);
        byte_of[static_cast<std::size_t>(letter)] = static_cast<std::int16_t>(byte);
        order[placed++] = static_cast<std::uint8_t>(byte);
      }
  }
};

const Letters& letters_table() {
  static const Letters table;
  return table;
}

}  // namespace

const std::array<std::uint8_t, 256>& byte_order() { return letters_table().order; }

std::string to_letters(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) {
    const unsigned letter = letters_table().of_byte[static_cast<unsigned char>(c)];
    if (letter < 0x80) {
      out.push_back(static_cast<char>(letter));
    } else {
      out.push_back(static_cast<char>(0xC0u | (letter >> 6)));
      out.push_back(static_cast<char>(0x80u | (letter & 0x3Fu)));
    }
  }
  return out;
}

std::optional<std::string> from_letters(std::string_view letters) {
  std::string out;
  for (std::size_t i = 0; i < letters.size(); ++i) {
    unsigned letter = static_cast<unsigned char>(letters[i]);
    if (letter >= 0x80) {  // all letters above ASCII are below U+0800: two bytes
      if (letter < 0xC2 || letter >= 0xE0 || i + 1 == letters.size()) return std::nullopt;
      const unsigned low = static_cast<unsigned char>(letters[++i]);
      if ((low & 0xC0u) != 0x80u) return std::nullopt;
      letter = (letter & 0x1Fu) << 6 | (low & 0x3Fu);
    }
    if (letter >= letters_table().byte_of.size() || letters_table().byte_of[letter] < 0) return std::nullopt;
    out.push_back(static_cast<char>(letters_table().byte_of[letter]));
  }
  return out;
}

}  // namespace lancet::data
