"""The names that `model_new.py` may use, by place and phase. Any other name is a violation."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """Returns the set of the blank-separated words."""
    return frozenset(text.split())


MODULES = {"torch", "torch.nn", "math", "typing", "cuda_extension", "__future__", "collections.abc", "dataclasses"}
FROM_TORCH = {"nn", "Tensor", "device", "dtype", "Size"}
#: `nn.init.` initialises; the module of that name also holds `torch`, `math`, `warnings`.
INIT_NAMES = words(
    """
    uniform_ normal_ trunc_normal_ constant_ ones_ zeros_ eye_ dirac_ xavier_uniform_ xavier_normal_ kaiming_uniform_
    kaiming_normal_ orthogonal_ sparse_ calculate_gain
    """
)
#: what may be taken from a module, by `from MODULE import NAME` or `MODULE.NAME`. Named one by one: a module of the
#: standard library also holds the modules that it imports itself, `sys` among them, and functions that run text.
NAMES_OF = {
    "typing": words(
        """
        Annotated Any Callable ClassVar Dict Final FrozenSet Generator Generic Hashable Iterable Iterator List Literal
        Mapping MutableMapping MutableSequence NoReturn Optional Sequence Set Sized Tuple Type TypeAlias Union
        TYPE_CHECKING Self
        """
    ),
    "collections.abc": words(
        """
        Callable Collection Container Generator Hashable Iterable Iterator Mapping MutableMapping MutableSequence
        MutableSet Reversible Sequence Set Sized
        """
    ),
    "collections": {"abc"},
    "dataclasses": {"dataclass", "field"},
    "torch.nn.init": INIT_NAMES,
}
#: attributes through which an object leads to the frame or the module that made it, without two underscores.
FRAME_NAMES = words(
    """
    gi_frame gi_code gi_yieldfrom cr_frame cr_code cr_await cr_origin ag_frame ag_code ag_await tb_frame tb_next f_back
    f_builtins f_code f_globals f_locals f_trace func_globals co_consts
    """
)
#: what `torch.` may stand before, wherever it is.
TORCH_NAMES = words(
    """
    nn Tensor Size device dtype empty empty_like empty_strided zeros zeros_like no_grad inference_mode is_tensor
    float32 float64 float16 bfloat16 float double half int8 int16 int32 int64 int long short uint8 bool
    float8_e4m3fn float8_e5m2 contiguous_format channels_last channels_last_3d preserve_format strided finfo
    iinfo
    """
)
#: while the module is constructed: values that the weights' real ones replace, and constants of the task.
TORCH_AT_CONSTRUCTION = words(
    """
    ones ones_like full full_like rand randn randint arange linspace eye tensor tril triu randn_like rand_like
    stack cat outer pow exp log sqrt cos sin meshgrid
    """
)
NN_NAMES = {"Module", "Parameter", "ParameterList", "ParameterDict", "ModuleList", "ModuleDict", "Buffer"}
BUILTINS = words(
    """
    abs all any bool dict divmod enumerate float int isinstance len list max min print range reversed round set
    str sum super tuple zip frozenset property staticmethod slice AssertionError ValueError TypeError
    RuntimeError NotImplementedError hasattr
    """
)
#: methods that compute nothing: views, shapes, containers, module bookkeeping.
METHODS = words(
    """
    view reshape transpose permute t contiguous flatten unflatten squeeze unsqueeze narrow select expand
    expand_as view_as movedim swapaxes unbind split chunk as_strided detach size stride dim numel nelement
    element_size is_contiguous data_ptr get_device ndimension is_floating_point new_empty new_empty_strided
    new_zeros storage_offset append extend items keys values get index count join format startswith endswith
    copy update setdefault pop insert __init__ load_state_dict register_buffer register_parameter add_module
    parameters buffers named_parameters named_buffers children modules eval train requires_grad_ state_dict _apply
    """
)
METHODS_AT_CONSTRUCTION = words(
    """
    to float half bfloat16 double clone type fill_ zero_ normal_ uniform_ mul_ add_ repeat repeat_interleave
    cumsum pow reciprocal exp cos sin sqrt log masked_fill masked_fill_
    """
)
#: while weights are loaded: conversions of what is derived from them. The arithmetic is the extension's.
METHODS_AT_LOADING = {"to", "float", "half", "bfloat16", "double", "clone", "copy_"}
READ_ONLY = words(
    """
    shape dtype device ndim T mT H is_cuda layout requires_grad itemsize nbytes training weight bias
    running_mean running_var eps data is_sparse num_features in_features out_features
    """
)
DUNDERS_DEFINED = {"__init__"}
TENSOR_COMPUTE = words(
    """
    matmul mm bmm addmm add sub mul div sum mean max min softmax log_softmax relu gelu sigmoid tanh exp log sqrt
    rsqrt pow norm var std dot mv einsum copy_ clone to half float double bfloat16 cpu cuda numpy tolist item
    apply_ map_ where gather scatter index_select masked_fill clamp abs neg cumsum cumprod sort topk argmax
    argmin prod repeat conv1d conv2d forward __call__
    """
)
NAMES_FORBIDDEN = words(
    """
    eval exec compile open globals locals vars getattr setattr delattr breakpoint input memoryview dir id type
    object map filter
    """
)
SCALARS = {"int", "float", "bool", "str"}
