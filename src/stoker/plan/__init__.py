"""Room plan: will the data keep up, before anything is bought or started? Formulas, no measurement."""

from stoker.plan.formulas import Change, Demand, Plan, Stage, Supply, plan

__all__ = ["Change", "Demand", "Plan", "Stage", "Supply", "plan"]
