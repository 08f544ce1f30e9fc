"""The planner's state: the steps so far, and the fused kernels between the skills' operators.

Values that needn't be in memory are recomputed inside the kernels that read them. A kernel starts from the last value
that must be in memory and also stores the others that it computes anyway. A reduction that doesn't fit a kernel's
frame (`Conflict`) is put into memory by a kernel before it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cuda_agent.core.errors import NotCovered
from cuda_agent.core.graph import Node, TensorMeta, reached
from cuda_agent.playbook import ir, kernel
from cuda_agent.playbook.codegen import launcher
from cuda_agent.playbook.coords import Conflict
from cuda_agent.playbook.expression import INDEXING
from cuda_agent.playbook.operators.windows import write_out
from cuda_agent.playbook.passes import recomputed_by_rows
from cuda_agent.playbook.plan import Buffer, Claim, DoesNotApply, Epilogue, PlanState, Skill, Step
from cuda_agent.playbook.registry import skills

#: a value that is broadcast over this many elements is put into memory instead of being recomputed for each.
_SPREAD = 8
#: bytes of which an address must be a multiple as before, so that a printed kernel's vectors fit.
_ALIGNED = 16


@dataclass
class State(PlanState):
    """The planner's state, with the kernels that it makes for the skills."""

    steps: list[Step] = field(default_factory=list)
    returned: tuple[str, ...] = ()
    #: key of `Kernel.canonical` -> the kernels of this form that were printed: each with the places where its reads
    #: start, and its step.
    _printed: dict[object, list[tuple[kernel.Kernel, Mapping[str, int], Step]]] = field(default_factory=dict)
    #: name of a claimed step -> its claim's `epilogue`.
    _epilogues: dict[str, Epilogue] = field(default_factory=dict)

    def in_memory(self, name: str) -> bool:
        resolved = self.builder.resolve(name)
        return resolved in self.resident or isinstance(self.builder.values.get(resolved), ir.Source)

    def allows(self, resolved: str, strides: tuple[int, ...]) -> bool:
        """Returns whether a value can have these strides: it isn't in memory yet, or has them there."""
        value = self.builder.values[resolved]
        found = value.strides if isinstance(value, ir.Source) else self.resident.get(resolved)
        return found is None or ir.same_strides(value.shape, found, strides)

    def set_layout(self, resolved: str, meta: TensorMeta) -> None:
        """Sets the layout that a value will have in memory."""
        self._metas[resolved] = meta

    def whole_result(self, resolved: str, strides: tuple[int, ...], taken: Sequence[str]) -> str | None:
        """Returns the step's result that holds exactly this value with these strides, None where there is none beside
        those taken. The result gets the value's shape."""
        view, value = self.strided(resolved), self.builder.values[resolved]
        if view is None or view.offset or view.buffer in taken or not self.options.fused:
            return None
        if not ir.same_strides(value.shape, view.strides, strides):
            return None
        for at, step in enumerate(self.steps):
            for buffer in step.outputs:
                if buffer.name == view.buffer and buffer.meta.dtype == value.dtype:
                    if math.prod(buffer.meta.shape) != math.prod(value.shape):
                        return None
                    meta = TensorMeta(shape=value.shape, dtype=value.dtype, strides=strides)
                    others = [Buffer(buffer.name, meta) if one is buffer else one for one in step.outputs]
                    self.steps[at] = replace(step, outputs=tuple(others))
                    return buffer.name
        return None

    def require(self, names: Sequence[str]) -> None:
        """Puts these values into memory with as few kernels as possible. Raises Conflict when one can't be computed,
        NotCovered when one is empty."""
        pending = self._pending(names)
        while pending:
            self._kernel_for(pending)
            pending = [name for name in pending if name not in self.resident]

    def _pending(self, names: Sequence[str]) -> list[str]:
        """Returns the values among these that aren't in memory, in the graph's order. Raises NotCovered when one is
        empty."""
        order = {name: at for at, name in enumerate(self.builder.values)}
        wanted = {self.builder.resolve(name) for name in names if not self.in_memory(name)}
        pending = sorted(wanted - set(self.resident), key=lambda name: order[name])
        empty = [name for name in pending if not ir.numel(self.builder.values[name].shape)]
        if empty:
            raise NotCovered(f"{empty[0]!r} is empty: there is nothing to compute", "Remove it from the module")
        return pending

    def _kernel_for(self, pending: list[str]) -> None:
        """Makes one kernel: for the last pending value and all others that fit into it, or for a value that it needs in
        memory. What the value in memory leaves of the others is seen afresh."""
        last = max(pending, key=lambda name: (self._has_reduction(name), pending.index(name)))
        if self.options.written_out:
            for name in self._below(last):
                write_out(self.builder, name)
        try:
            unroll = not self._has_reduction(last)
            group = kernel.inline(last, self.builder.values, self.resident, unroll=unroll)
        except Conflict as conflict:
            if conflict.inside is not None and write_out(self.builder, conflict.value, conflict.inside):
                return
            cut, value = self._cut(conflict, last), self.builder.values[last]
            if cut == last and isinstance(value, ir.Scan):
                # The scanned dimension isn't one dimension of the operand's buffer, so the operand is stored first.
                cut = value.arg
            if cut == last or self.in_memory(cut):
                raise NotCovered(f"No kernel fits value {last!r}", "Another skill is needed") from None
            cut = self._before_broadcast(cut, last)
            self._kernel_for(self._pending([cut, *self._siblings(cut)]))
            return
        costly = recomputed_by_rows(group)
        if costly is not None:
            self.require([costly])
            return
        group = self._widen(group, last, pending)
        self._emit(*self._finished(group))

    def _finished(self, group: kernel.Group) -> tuple[kernel.Kernel, dict[str, tuple[int, ...]]]:
        """Returns the group's kernel and the layouts of its results."""
        strides = {}
        for store in group.stores:
            value = self.builder.values[store.name]
            meta = self._metas.get(store.name)
            wanted = meta.strides if meta is not None and meta.shape == value.shape else None
            strides[store.name] = kernel.layout(value, wanted)
        return kernel.finish(group, strides), strides

    def _has_reduction(self, name: str) -> bool:
        return any(isinstance(self.builder.values[at], ir.Reduce | ir.Scan) for at in self._below(name))

    def _below(self, name: str) -> tuple[str, ...]:
        """Returns a value and all that it is computed from, up to values in memory."""
        values, resident = self.builder.values, self.resident
        starts = [name] if name not in resident else []
        return reached(starts, lambda at: (n for n in ir.operands(values[at]) if n not in resident))

    def _widen(self, group: kernel.Group, last: str, pending: list[str]) -> kernel.Group:
        """Adds the pending values that the kernel computes anyway, and those that read the same buffers."""
        for name in pending:
            if name == last:
                continue
            store = kernel.computed_everywhere(name, group)
            if store is not None:
                group.stores.append(store)
        taken = {store.name for store in group.stores}
        reads = {e.name for e in group.inliner.nodes if e.op == "load"}
        extra: list[str] = []
        for name in pending:
            if name in taken:
                continue
            try:
                alone = kernel.inline(name, self.builder.values, self.resident)
                if not reads & {e.name for e in alone.inliner.nodes if e.op == "load" and len(e.coord.terms) > 0}:
                    continue
                others = [*sorted(taken - {last}), *extra, name]
                unroll = not self._has_reduction(last)
                wider = kernel.inline(last, self.builder.values, self.resident, others, unroll=unroll)
            except Conflict:
                continue
            # A common frame may fit neither of them.
            apart, strided = (group, alone), kernel.strided_bytes
            if strided(self._finished(wider)[0]) > sum(strided(self._finished(one)[0]) for one in apart):
                continue
            extra.append(name)
            group = wider
        return group

    def _cut(self, conflict: Conflict, last: str) -> str:
        """Returns the value to put into memory: the operand of the outer reduction where it is as small as the inner
        one's result."""
        value, inside = conflict.value, conflict.inside
        if inside is not None and inside != value:
            outer = self.builder.values[inside]
            inner = self.builder.values[value]
            assert isinstance(outer, ir.Reduce | ir.Scan)
            body = self.builder.values[outer.arg]
            while isinstance(outer, ir.Reduce) and outer.slides and isinstance(body, ir.Strided | ir.Pad):
                body = self.builder.values[body.arg]
            if ir.numel(body.shape) <= ir.numel(inner.shape):
                return body.name
        if value == last and inside is not None:
            return inside
        return value

    def _before_broadcast(self, cut: str, last: str) -> str:
        """Moves the cut towards `last` while it has a single reader and stays small, up to the value that is broadcast
        over many more elements. Each of these would otherwise recompute it."""
        limit = ir.numel(self.builder.values[last].shape) // _SPREAD
        users: dict[str, list[ir.Value]] = {}
        for value in self.builder.values.values():
            for name in set(ir.operands(value)):
                users.setdefault(name, []).append(value)
        found = at = cut
        while len(users.get(at, ())) == 1 and ir.numel(users[at][0].shape) <= limit:
            at = users[at][0].name
            if self.in_memory(at):
                break
            found = at if isinstance(self.builder.values[at], ir.Pointwise) else found
        return found

    def _siblings(self, name: str) -> list[str]:
        """Returns the other reductions of the same value over the same dimensions, for the same kernel."""
        value = self.builder.values[name]
        if not isinstance(value, ir.Reduce):
            return []
        return [
            other.name
            for other in self.builder.values.values()
            if isinstance(other, ir.Reduce) and (other.arg, other.dims) == (value.arg, value.dims) and other != value
        ]

    def _emit(self, work: kernel.Kernel, strides: dict[str, tuple[int, ...]]) -> None:
        buffers = tuple(
            Buffer(name, TensorMeta(shape=self.builder.values[name].shape, dtype=dtype, strides=strides[name]))
            for name, dtype in work.writes
        )
        form, starts = work.canonical()
        printed = self._printed.setdefault(form, [])
        if not self._again(work, starts, buffers, printed):
            for skill in skills():
                if skill.fits(work):
                    step = skill.step(work, buffers, self.device, self._step_name(work, skill.notes.kernels))
                    if step is not None:
                        self._add(step, skill)
                        printed.append((work, starts, self.steps[-1]))
                        break
        if self.options.fused and not work.reduces and not work.scans:
            self._join(work)
        self.resident.update(strides)

    def _join(self, work: kernel.Kernel) -> None:
        """Replaces the last step, which launches this kernel, and a claimed one whose result only this kernel reads by
        one step for both, where the claim has such a step."""
        *before, last = self.steps
        for at, step in reversed(list(enumerate(before))):
            epilogue = self._epilogues.get(step.name)
            if epilogue is None or not self._is_only_reader(work, step):
                continue
            joined = epilogue(work, step, last)
            if joined is not None:
                self.steps = [*before[:at], *before[at + 1 :], replace(joined, skill=step.skill)]
                return

    def _is_only_reader(self, work: kernel.Kernel, step: Step) -> bool:
        """Returns whether the kernel reads the step's result, no earlier step does, and all that is computed from it
        later starts from the kernel's results."""
        (result,) = step.outputs
        readers = [other for other in self.steps if result.name in other.inputs]
        written = {name for name, _ in work.writes}
        if readers != self.steps[-1:] or self.is_output(result.name):
            return False

        def users(name: str) -> Iterator[str]:
            return (node.name for node in self.users(name) if self.builder.resolve(node.name) not in written)

        return not any(map(self.is_output, reached([result.name], users)))

    def _again(
        self,
        work: kernel.Kernel,
        starts: Mapping[str, int],
        outputs: tuple[Buffer, ...],
        printed: Sequence[tuple[kernel.Kernel, Mapping[str, int], Step]],
    ) -> bool:
        """Adds a step that launches a kernel that was printed before, from other places of its buffers. Returns False
        where there is none, or where an address would be aligned otherwise."""
        for other, before, step in printed:
            shifts = {
                name: (starts[name] - before[theirs]) * ir.ITEM_BYTES[work.dtype(name)]
                for name, theirs in zip(work.reads, other.reads, strict=True)
            }
            plain = launcher(other, self.device, step.name, [("void", buffer.name) for buffer in step.scratch])[1]
            if step.call != plain or any(shift % _ALIGNED for shift in shifts.values()):
                continue
            scratch = tuple(replace(buffer, name=self.fresh(buffer.name)) for buffer in step.scratch)
            call = launcher(work, self.device, step.name, [("void", buffer.name) for buffer in scratch], shifts)[1]
            again = replace(step, inputs=work.reads, outputs=outputs, scratch=scratch, call=call, shifts=shifts)
            self.steps.append(again)
            return True
        return False

    def _add(self, step: Step, skill: Skill) -> None:
        self.steps.append(replace(step, skill=skill.notes.name))

    def _step_name(self, work: kernel.Kernel, stem: str) -> str:
        words = [
            e.op
            for e in work.nodes
            if e.op not in ("load", "const", "cast", "index", "inside", "reduce", "scan", *INDEXING)
        ]
        kinds = [e.name for e in work.nodes if e.op in ("reduce", "scan")]
        return self.fresh("_".join([stem, *list(dict.fromkeys(kinds + words[::-1]))[:3]]))

    def claim(self, node: Node) -> Claim | None:
        """Adds the step of the first skill that claims the node, after the kernels that compute its inputs."""
        for skill in skills():
            try:
                claim = skill.claim(self, node)
            except DoesNotApply:
                continue
            if claim is None:
                continue
            self.require([name for name in claim.step.inputs if not self.in_memory(name)])
            self._add(claim.step, skill)
            if claim.epilogue is not None:
                self._epilogues[claim.step.name] = claim.epilogue
            for buffer in claim.step.outputs:
                self.builder.source(buffer.name, buffer.meta)
            if claim.then is not None:
                claim.then()
            return claim
        return None
