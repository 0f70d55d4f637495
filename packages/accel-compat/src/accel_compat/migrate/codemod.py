"""The codemod: one pass over the syntax of a program, which applies the rewrites."""

from __future__ import annotations

import libcst as cst
from libcst.helpers import get_full_name_for_node

from accel_compat.finder import UPSTREAM
from accel_compat.migrate.program_names import ProgramNames
from accel_compat.migrate.rewrites import ARGUMENTS, CONFIGURATION, LOADERS, OURS, module_for


class Codemod(cst.CSTTransformer):
    """A transformer that puts accel in place of Accelerate, and arguments where accel takes them."""

    def __init__(self, names: ProgramNames) -> None:
        super().__init__()
        self.names = names

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import:
        """Rewrite `import accelerate.x as y`."""
        return updated_node.with_changes(names=[self._alias(alias) for alias in updated_node.names])

    def _alias(self, alias: cst.ImportAlias) -> cst.ImportAlias:
        module = alias.evaluated_name
        if module.partition(".")[0] != UPSTREAM:
            return alias
        if alias.asname is None:
            # the name stays: the program may have something else by the name accel
            return alias.with_changes(name=cst.Name(OURS), asname=cst.AsName(cst.Name(UPSTREAM)))
        return alias.with_changes(name=cst.parse_expression(module_for(module)))

    def leave_ImportFrom(self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom) -> cst.ImportFrom:
        """Rewrite `from accelerate.x import y`."""
        module = get_full_name_for_node(updated_node.module or "") or ""
        if updated_node.relative or module.partition(".")[0] != UPSTREAM:
            return updated_node
        names = updated_node.names
        if module == UPSTREAM and self.names.imports_it and not isinstance(names, cst.ImportStar):
            bound = [alias.evaluated_name for alias in names]
            names = [cst.ImportAlias(cst.Name(CONFIGURATION)), *names] if "Accelerator" in bound else names
        return updated_node.with_changes(module=cst.parse_expression(module_for(module)), names=names)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        """Rewrite the arguments of Accelerator, but for those that are left to a person."""
        if self.names.full(get_full_name_for_node(original_node.func)) != f"{UPSTREAM}.Accelerator":
            return updated_node
        prefix = (get_full_name_for_node(updated_node.func) or "").rpartition(".")[0]
        configuration = f"{prefix}.{CONFIGURATION}" if prefix else self.names.configuration
        given = {word.keyword.value: word for word in updated_node.args if word.keyword is not None}
        moves = configuration is not None and LOADERS not in given
        moved = [word for name, word in given.items() if moves and ARGUMENTS.get(name) == LOADERS]
        args = []
        for word in updated_node.args:
            if word is given.get("logging_dir") and "project_dir" not in given:
                word = word.with_changes(keyword=cst.Name("project_dir"))
            elif word in moved[-1:]:
                inner = [*moved[:-1], word.with_changes(comma=cst.MaybeSentinel.DEFAULT)]
                call = cst.Call(cst.parse_expression(str(configuration)), inner)
                word = word.with_changes(keyword=cst.Name(LOADERS), value=call)
            if word not in moved:
                args.append(word)
        return updated_node.with_changes(args=args)
