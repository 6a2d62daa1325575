-- Neovim 0.11 or newer: copy to ~/.config/nvim/plugin/uprof.lua.
-- Needs `pip install 'unified-prof[editor]'`; :UprofReload shows the newest run.

vim.lsp.config("uprof", {
  cmd = { "uprof", "lsp" },
  filetypes = { "python" },
  root_markers = { "pyproject.toml", ".git" },
})
vim.lsp.enable("uprof")
vim.lsp.inlay_hint.enable()

-- Code lenses ask the editor to open the page of the run; the server sends its address.
vim.api.nvim_create_user_command("UprofReload", function()
  for _, client in ipairs(vim.lsp.get_clients({ name = "uprof" })) do
    client:request("workspace/executeCommand", { command = "uprof.reload" })
  end
end, { desc = "Show the newest run" })
