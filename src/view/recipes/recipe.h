// Recipes: which tensors a view makes of those of another, and how; the language of
// docs/RECIPES.md.
//
// A recipe is a list of rules, done one after another, each on all tensors that the earlier ones
// left. A file holds one view (which --recipe adds), or a family of models: its model_type, and
// lists of rules for each layout of its experts, and for MaxText's trees. The families in
// src/view/recipes/*.json are built in; they use nothing that other files cannot. Shared lists have
// names, and may be all of a file; each user of a list gets a copy.
//
// A program needs the rules of one or two families, and parsing all that are built in takes longer
// than all else that a short one does. So a file that is built in is parsed when a family or a list
// of it is asked for.
//
// Everything here is immutable except for that, and safe for concurrent use.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/lazy.h"
#include "view/recipes/expression.h"
#include "view/recipes/operation.h"
#include "view/recipes/pattern.h"
#include "view/view.h"

namespace ckfs {

inline constexpr std::size_t kMaxRecipe = std::size_t{1} << 20;   // bytes of a file
inline constexpr std::size_t kMaxTensors = std::size_t{1} << 20;  // that rules leave
inline constexpr std::size_t kMaxTensorName = 4096;               // that a rule gives
inline constexpr std::size_t kMaxRules = 1000;                    // of a list
inline constexpr std::size_t kMaxListed = 10 * kMaxRules;         // of all lists of a file

struct Rule {
  enum class Kind : std::uint8_t {
    Make,    // takes tensors, gives others in their place
    Select,  // drops all that does not fit
    Drop,    // drops what fits
    Expect,  // something must fit
    Forbid,  // nothing may fit
    Only,    // all must fit, and one at least
  };
  struct Let {
    std::size_t variable;
    Expression value;
  };
  /// What undo_rules() does with a rule that makes, where its operations' inverses are not it.
  struct Back {
    bool skip = false;            // nothing
    bool drop = false;            // leaves the results out: they came from no tensor
    std::vector<Condition> when;  // on config.json: nothing where one does not hold
    std::optional<std::vector<Operation>> operations;  // these
  };

  Kind kind = Kind::Make;
  std::shared_ptr<const std::string> file;  // and line, for messages
  std::uint32_t line = 0;
  bool optional = false;  // may find nothing
  bool copy = false;      // the taken tensors stay
  std::vector<Pattern> patterns;
  Variables variables;       // captures, then those of `let`, then those of `unstack`
  std::size_t captures = 0;  // how many are captures
  std::vector<Let> lets;
  std::vector<Condition> when;    // on config.json: the rule is left out where one does not hold
  std::vector<Condition> where;   // on a tensor
  std::vector<std::string> keys;  // variables that are stacked or unstacked
  std::vector<Operation> operations;
  std::vector<Template> give;
  std::vector<std::string> axes;  // of the results, as Flow::axes; empty: the axes that they have
                                  // already
  Back back;
  /// Of Expect: of the tensors that agree in all other captures, one for each of the `count` values
  /// of this one, from 0.
  std::size_t over = 0;
  std::optional<Expression> count;
};

/// Rules and the file that they are from, for messages.
struct RuleList {
  std::string file;
  std::vector<Rule> rules;
};

/// A view of the user's own.
struct RecipeView {
  std::string name;
  std::string description;
  std::string from;  // spelling of a built-in view
  ContainerKind container = ContainerKind::Safetensors;
  RuleList rules;
};

/// The releases of MaxText whose trees are known, the newest first: what a view's `maxtext` says. A
/// release between two of them has the trees of one of the two.
inline constexpr std::array<std::string_view, 2> kMaxTextReleases{"0.2.5", "0.2.3"};
inline constexpr std::string_view kNewestMaxText = kMaxTextReleases.front();

/// The trees of parameters that MaxText has for a kind of model.
struct MaxTextTrees {
  std::vector<std::string> stems;        // what MaxText's model_name begins with: "deepseek3"
  std::vector<Condition> where;          // on config.json
  std::map<std::string, double> config;  // numbers that config.json may leave out
  bool mtp = false;                      // the rules have `$view.mtp`
  bool multimodal = false;               // the rules have `$view.multimodal`
  bool by_config = false;  // a tree is of this family by config.json or --family alone
  /// Collections beside `params` whose arrays the rules know: params.MoEBiasVar of "MoEBiasVar".
  std::vector<std::string> collections;
  /// Of kMaxTextReleases, in their order: those for which there are rules, where releases differ
  /// and the rules have `$view.maxtext`. Empty: all have the same trees.
  std::vector<std::string_view> releases;
  RuleList unscanned;  // from the tensors of a Hugging Face model
  RuleList scanned;    // from what `unscanned` gives; empty: MaxText has no such tree
};

/// The rules by which a training program's names and shapes of a kind of model become those of
/// Hugging Face, and the other way round.
struct ProgramRules {
  std::map<std::string, double> config;  // numbers that config.json may leave out
  RuleList read;
  std::string experts;  // the layout that `write` begins with; empty: the source's
  RuleList write;       // the way there; empty: it is not known
  /// Endings of Hugging Face's names whose tensors keep their dtype in a view in BF16.
  std::vector<std::string> keep;
};

/// The rules for a kind of model.
struct ModelFamily {
  std::string file;
  std::vector<std::string> models;  // values of model_type, or of architectures
  /// "linear", "fused", "packed": the rules that give this layout of the experts whatever layout
  /// the source has.
  std::map<std::string, RuleList, std::less<>> layouts;
  std::optional<MaxTextTrees> maxtext;
  std::map<std::string, ProgramRules, std::less<>>
      programs;  // by program: "megatron", "torchtitan", "prime-rl"
};

/// What a family is chosen by, and its rules, parsed or not yet.
struct KnownFamily {
  explicit KnownFamily(ModelFamily family);
  /// `members`: of its file.
  KnownFamily(std::vector<std::string> models, std::vector<std::string> stems,
              std::vector<std::string> members, Lazy<ModelFamily>::Make make);

  /// Whether it has rules for that: "experts", "maxtext", or a program.
  bool has(std::string_view member) const;

  std::vector<std::string> models;  // ModelFamily::models
  std::vector<std::string> stems;   // MaxTextTrees::stems
  std::vector<std::string> members;
  Lazy<ModelFamily> rules;
};

struct FoundTree;
struct FoundNames;

/// The families that are built in, and what the files of --recipe say. A copy shares their rules.
struct Recipes {
  std::vector<RecipeView> views;
  std::vector<std::shared_ptr<const KnownFamily>> families;
  /// Rules to use in others.
  std::map<std::string, std::shared_ptr<const Lazy<std::vector<Rule>>>, std::less<>> lists;
  /// The model by --family: a model_type, or a MaxText model_name. Empty: config.json decides.
  std::string family = {};
  /// The model that the checkpoint's tree is made of, found once for all views (maxtext_tree.h).
  /// nullptr: no search was made.
  std::shared_ptr<const FoundTree> tree = {};
  /// The same for a checkpoint with a training program's names (program_names.h).
  std::shared_ptr<const FoundNames> named = {};

  const RecipeView* find_view(std::string_view name) const;
  /// Whether a family has the name that --family gives.
  bool knows_family() const;
  /// The names that the model may have, the most likely first.
  std::vector<std::string> models(const ConfigNumbers& config) const;
  /// The last family that has layouts of experts for the first of models() that any has. nullptr:
  /// none. Valid as long as the object.
  const ModelFamily* find_layouts(const ConfigNumbers& config) const;
  /// The same for MaxText's trees whose whole `where` holds. But a family with --family among its
  /// model_names of MaxText comes first (the last such one), whatever holds.
  const ModelFamily* find_maxtext(const ConfigNumbers& config) const;
  /// The same for the names of a program.
  const ProgramRules* find_program(std::string_view program, const ConfigNumbers& config) const;
};

/// `recipes` and what a file says. Errors: Corrupt (not the language; with the file, and the line
/// where it is about one).
Result<Recipes> add_recipe(Recipes recipes, std::string_view text, std::string_view file);

/// The numbers of the source's config.json. Errors: Corrupt.
Result<ConfigNumbers> config_numbers(const Catalog& catalog);

/// Tensors, and the names of those that no catalog names.
struct TensorList {
  std::list<std::string> names = {};  // each stays where it is
  std::vector<ModelTensor> tensors = {};
  /// What the dimensions of tensors are to a mesh: ModelTensor::split is an index in it.
  std::vector<std::vector<std::string>> axes = {};
  /// Has names of tensors that are neither a catalog's nor in `names`.
  std::shared_ptr<const void> lender = {};
};

/// Applies the rules to the tensors. A result lies in the shard of its first part, has its role,
/// the least exactness of all parts, and takes the place of its first part in the list. Errors:
/// Unsupported, each naming the file, a line (the rule's, or the failed operation's), and a tensor
/// where there is one.
Result<TensorList> apply_rules(const RuleList& rules, const ConfigNumbers& config, TensorList list);

/// The same for one of a list.
Result<TensorList> apply_rule(const Rule& rule, const ConfigNumbers& config, TensorList list);

/// The tensors of a view that no mesh shares: what rules said of axes is forgotten.
TensorList without_axes(TensorList list);

/// Tensors that the way back left out because rules say so.
struct DroppedArrays {
  std::size_t count = 0;
  std::optional<StorageId> first;  // has elements of the first one
};

/// Tensors before the rules, and the facts that were learned in finding them.
struct Undone {
  TensorList list;
  ConfigNumbers config;
  /// An operation of the way back changes values, or the dtype that they have.
  bool does_values = false;
  DroppedArrays left_out = {};
};

/// The way back: what the rules made `list` of, from the last rule to the first. What a rule
/// checks is checked, what it drops stays away, what it makes is found by the names that it gives
/// and goes through the inverses of its operations, or through what the rule says of the way back;
/// casts are left out, values keep the dtype that they have. Shapes must be those that the rules
/// give with the numbers of `config`; without a config.json, these numbers follow from the shapes,
/// and whether a rule was done whose `when` asks for one of them from what there is; a word of
/// config.json that is not there equals none. Errors: Unsupported, each naming the file, and
/// the rule's line and a tensor where it is about one.
Result<Undone> undo_rules(const RuleList& rules, ConfigNumbers config, TensorList list);

/// Whether `list` has a tensor by a name that one of the rules gives, except rules that say that
/// they have no way back.
bool has_results(const RuleList& rules, const TensorList& list);
bool has_results(const Rule& rule, const TensorList& list);

}  // namespace ckfs
