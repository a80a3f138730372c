"""Sharing diagnosis codes: sensitive ones hidden by randomised response, what gives them away hidden with them."""
