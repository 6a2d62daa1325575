"""The rules, a module a cause; `registry.MODULES` names them."""
