"""The rules, a module a cause; `registry.RULES` names them."""
