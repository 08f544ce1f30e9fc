"""Names of graph values in generated sources. A name that would hide one of C++ or of the templates is changed."""

from __future__ import annotations

import re

#: keywords of C++ and CUDA, and names that the templates declare. A test checks every generated kernel for others.
_WORDS = """
alignas and asm auto bool break case catch char class concept const constexpr consteval constinit continue co_await
co_return co_yield decltype default delete do double dynamic_cast else enum explicit export extern false float for
friend goto if inline int long mutable namespace new noexcept not nullptr operator or private protected public
register reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template
this throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor
at c10 half pow exp log sqrt abs floor sin cos tanh erf min max isinf isnan std stdlib torch pybind11
Index INFINITY INLINE NAN Vec LogSum Maximum Minimum And Or Plus Times State T
blockDim blockIdx cudaStream_t gridDim threadIdx aligned_alloc free include pragma omp op parallel schedule simd
nowait share reduction merged
across across_at all along along_at base begin block blocks clamped col config count earlier end first first_across
first_along gap high inner inside j k lane larger launch_clusters left live load_vector low merge merge_block
merge_down narrow outer part parts past piece place q raw reduce_row rest result row run scan_lanes scratch shared
split start state steps stop store_vector stream stream_copy take_max take_min tap task tile top total tx ty u unroll v
vector wanted warp widen check check_status device options status workspace geometry bytes shape sizes m
ACROSS ALONG BLOCKS CLUSTER COLS FULL INNER INNER_VECTORS LANES OUT OUTER OUTPUTS PART PARTS PAST_CACHES PHASE PIECE
READS READ_WIDTH RESULTS ROW ROWS ROWS_PER_BLOCK ROW_VECTORS SHIFT SIZE_ACROSS SIZE_ALONG SPLITS STAGED STAGE_WIDTH
STEPS STORE_WIDTH STRIDE TABLE TAPS THREADS TILE TILES Tiles TILES_ACROSS TILES_ALONG TX TY UNROLL VECTORS WARPS WIDTH
"""
_TAKEN = frozenset(_WORDS.split())
#: the templates' numbered names, and the launchers' parameters, functions and settings.
_LIKE_OURS = re.compile(
    r"(a|all|b|base|bf|carry|count|dim|e|early|extent|f|first|h|i|keep|kept|m|mean|n|o|p|part|parts|q|r|row|s|state"
    r"|t|tile|top|v|w|x|y|E|T|State|TILES)\d+(_\w+)?"
    r"|\w+_p|(f|config|launch|register)_\w+|U?INT\d+_(MIN|MAX)|__\w+|_[A-Z]\w*|_mm_\w+"
)


def cpp_name(value: str) -> str:
    """Returns a graph value's name as a C++ and Python identifier. Different identifiers stay different."""
    name = re.sub(r"\W", "_", value)
    if name[:1].isdigit():
        return f"_{name}"
    bare = name.rstrip("_")
    return f"{name}_" if bare in _TAKEN or _LIKE_OURS.fullmatch(bare) else name
