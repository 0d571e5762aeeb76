// "Did you mean": which known word a misspelt one may stand for.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ckfs {

/// The word of `known` that `word` is most likely meant to be: the one it differs from by the
/// fewest letters (typed wrong, missing, added or swapped), at most one in three; else the first
/// that begins with it, or that it begins with, up to a '-', '_' or '.'. Empty: none is like it. A
/// pure function; a word of more than 64 letters is like none.
std::string_view closest(std::string_view word, std::span<const std::string_view> known);

/// For the end of a message about `word`, which `known` does not have: " (did you mean mount? there
/// are: mount, umount)", " (there are: mount, umount)", or nothing where `known` is empty. Of more
/// than 20 words the first 20 are listed; `before_list` comes before the list.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> known,
                         std::string_view before_list = "there are: ");

}  // namespace ckfs
